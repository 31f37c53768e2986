"""Workdirs: their scores, and what is known of how their runs were trained. Runs on other data are no fair comparison.

Runs of one algorithm with other settings are no runs of one algorithm.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from jaxbed import settings
from jaxbed.evaluation import answers
from jaxbed.stats import names
from jaxbed.system import files


def read(path: Path) -> tuple[pd.DataFrame, dict]:
    """The scores of a workdir, and its source, a dictionary:

    path, algorithm  as given and as config.json says
    runs, datasets   [algorithm, run] of each run; the sets that are no validation splits
    data, sets       the facts of responses/sets.json: of the training data; of each set
    settings         config.json
    notes            what was not read

    Raises FileNotFoundError or ValueError, with the cure, for a file that is missing or damaged and for a run that has only variants.
    """
    from jaxbed.evaluation import metrics  # here, so that a table of scores needs nothing of the training side

    place = path / "responses" / "sets.json"
    config, about = _configuration(path / "config.json"), answers.read_sets(place) if place.is_file() else None
    if about is None and config and config.get("sweep"):
        variants = sorted(str(place.parent.parent) for place in path.glob("*/responses/sets.json"))
        cure = f"give the folders of its variants: {' '.join(variants)}" if variants else f"run: jaxbed eval {path}"
        raise FileNotFoundError(f"{path} holds the variants of a sweep, and no responses of its own: {cure}")
    frame = metrics.scores(path)
    config, about = config or {}, about or {}
    strays = metrics.strays(path) if about else []
    notes = [f"not read, since answers are named EPOCH.npz: {names.listed(f'responses/{name}' for name in strays)}"] if strays else []
    runs = sorted(set(zip(frame["algorithm"], frame["run"].tolist(), strict=True)))
    return frame, {
        "path": str(path),
        "algorithm": frame["algorithm"].iloc[0] if len(frame) else "",
        "runs": [list(run) for run in runs],
        "datasets": frame.loc[frame["role"] != "val", "dataset"].unique().tolist(),
        "data": about.get("data", {}) | ({"classes": sorted(map(str, about["classes"]))} if about.get("classes") else {}),
        "sets": about.get("sets", {}),
        "settings": config,
        "notes": notes,
    }


def refuse_other_settings(sources: Sequence[Mapping]) -> None:
    """Raises ValueError for two workdirs of one algorithm that differ in more than their seeds and in what MAY_CHANGE.

    Where they were trained on other data and share no test set, their runs are never averaged, and may differ.
    """
    for place, here in enumerate(sources):
        for there in sources[:place]:
            if here["algorithm"] != there["algorithm"] or not (here["settings"] and there["settings"]):
                continue
            shared = [name for name in there["datasets"] if name in here["datasets"]]
            both = there["settings"], here["settings"]
            found = _differences(*both)
            if not shared and any(line.startswith("data") for line in found):
                continue
            found += settings.differences(*({"evaluated by": _decisions(source, shared)} for source in (there, here)))
            if found:
                path = here["path"] if "/" in here["path"] else f"./{here['path']}"
                other = names.word(path, f"{here['algorithm']} {_short(found[0])}")
                more = f" and {len(found) - 3} more" if len(found) > 3 else ""
                raise ValueError(
                    f"{there['path']} and {here['path']} are runs of one algorithm, {here['algorithm']!r}, with other settings (first / "
                    f"second): {'; '.join(found[:3])}{more}. Averaging them would mix two algorithms. Give one of them another name, "
                    f"--rename {other}, or train both with the same settings"
                )


def _differences(one: dict, other: dict) -> list[str]:
    """Where the settings differ. Runs of other seeds start from other workdirs (init_from), whose settings are compared instead."""
    origins, but = (_origin(one), _origin(other)), {"name", *settings.SEEDS, *settings.free(one, other)}
    if not all(origins):
        return settings.differences(one, other, but)
    found = settings.differences(*origins, {"name", *settings.SEEDS, *settings.free(*origins)})
    return settings.differences(one, other, but | {"init_from"}) + [f"init_from: {line}" for line in found]


def _origin(config: dict) -> dict | None:
    """The settings of the workdir that a run started from, with the epoch; None where it started from none that is there."""
    asked = str(config.get("init_from") or "")
    folder, _, epoch = asked.rpartition(":")
    place = Path(folder) if epoch.isdigit() else Path(asked)
    origin = _configuration(place / "config.json") if asked else None
    return origin and {**origin, "epoch": epoch if epoch.isdigit() else "last"}


def _decisions(source: Mapping, shared: Iterable[str]) -> dict:
    """What turned the answers of the shared sets into scores."""
    decisions = {name: source["sets"].get(name, {}).get("decision") for name in shared}
    return {**decisions, "zoom": source["data"].get("zoom")}


def _short(difference: str) -> str:
    """'lr=0.0001' of 'optim.lr: 0.1 / 0.0001'."""
    field, _, values = difference.partition(": ")
    return f"{field.rpartition('.')[2]}={values.rpartition(' / ')[2]}"[:40]


def _configuration(path: Path) -> dict | None:
    """The content of a config.json; None where there is none."""
    if not path.is_file():
        return None
    cure = "put back the configuration that the run was started with"
    content = files.read_object(path, cure)
    if not content.get("name") or not isinstance(content["name"], str):
        raise ValueError(f"{path} is damaged ('name' is missing or no text): {cure}")
    return content
