"""From answers to tables of scores. Reads what `evaluate` wrote; knows neither JAX nor the network. What is measured: `measures`."""

import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.data import model_vs_human
from jaxbed.evaluation import calibration, image_tables, label_lists, measures
from jaxbed.evaluation.answers import ANSWERS, LOGITS, SCORES, read_answers, read_sets
from jaxbed.evaluation.image_tables import Images
from jaxbed.system import files

SHOWN = ("accuracy", "aligned", "conflicting", "pr_auc_weighted")  # of validation sets, when a run has ended
RENDITIONS = ("imagenet_r", "imagenet_r_unmasked")  # sets whose images are named <class>/<rendition>_<number>
COLUMNS = ["algorithm", "run", "dataset", "epoch", "metric", "value", "n_correct", "n_total", "role", "status"]


def scores(workdir: pathlib.Path | str) -> pd.DataFrame:
    """All metrics of a run, one row per (seed, set, epoch, metric); columns COLUMNS, values as fractions.

    run is the seed. role is val, test or ood. status is "diverged" for a seed from the epoch on in which it became non-finite,
    whose answers are those of its last finite state; "ok" otherwise.
    """
    workdir = pathlib.Path(workdir)
    algorithm, about = _about(workdir)
    rows: dict[str, list] = {column: [] for column in COLUMNS[1:]}
    temperatures = _temperatures(workdir, about) if measures.needs_temperature() else {}
    for dataset, facts in about["sets"].items():
        folder = workdir / "responses" / dataset
        images = _images(workdir, dataset, facts)
        kept, groups = model_vs_human.kept(dataset, images.name), renditions(dataset, images.name)
        targets = None if images.targets is None else label_lists.targets(images.targets, len(about["classes"]))
        paths = answers(folder)
        if not paths:
            raise FileNotFoundError(f"{folder} holds no answers: run: jaxbed eval {workdir}")
        for path in paths:
            response, seeds, alive, scores_of_answers = _answers(workdir, path, len(images.label), facts)
            status = np.where(alive, "ok", "diverged")
            cells = about.get("training_cells", ())
            known = (about["data"]["cue"], cells, images.real, kept, images.anomaly, groups)
            given = measures.Answers(response, images.label, images.bias, *known, **scores_of_answers, targets=targets)
            if (epoch := int(path.stem)) in temperatures and targets is None and facts.get("decision") == "argmax":
                of_seeds = [temperatures[epoch].get(int(seed), np.nan) for seed in seeds]
                given = dataclasses.replace(given, temperature=np.array(of_seeds))
            for metric, (value, n_correct, n_total) in measures.measure(given).items():
                same = (dataset, int(path.stem), metric, facts["role"])
                for column, array in zip(
                    ("run", "value", "n_correct", "n_total", "status", "dataset", "epoch", "metric", "role"),
                    (seeds, value, n_correct, n_total, status, *(np.full(len(seeds), x) for x in same)),
                    strict=True,
                ):
                    rows[column].append(array)
    columns = {column: np.concatenate(arrays) for column, arrays in rows.items()}
    frame = pd.DataFrame({"algorithm": algorithm, **columns})[COLUMNS]
    frame = frame[frame["value"].notna()]  # shape bias, where no answer names shape or texture
    return pd.concat([frame, _gap(frame)], ignore_index=True)


def _temperatures(workdir: pathlib.Path, about: dict) -> dict[int, dict[int, float]]:
    """{epoch: {seed: temperature}} of the validation images whose scores are kept; {} unless one set of such images decides by argmax."""
    sets = {name: facts for name, facts in about["sets"].items() if facts["role"] == "val" and "targets" not in facts}
    if len(sets) != 1 or (pair := next(iter(sets.items())))[1].get("decision") != "argmax":
        return {}
    found, label = {}, _images(workdir, *pair).label
    for path in answers(workdir / "responses" / pair[0]):
        _, seeds, _, kept = _answers(workdir, path, len(label), pair[1])
        logits = [(int(seed), of_seed) for seed, of_seed in zip(seeds, kept.get(LOGITS, ()), strict=LOGITS in kept)]
        found[int(path.stem)] = {seed: calibration.temperature(x, label) for seed, x in logits if np.isfinite(x).all()}
    return {epoch: of_seeds for epoch, of_seeds in found.items() if of_seeds}


def _gap(frame: pd.DataFrame) -> pd.DataFrame:
    """The metric gap of imagenet_r: how much higher accuracy is on ImageNet's own images of its classes (Hendrycks et al., 2021)."""
    plain, shifted = (frame[(frame["dataset"] == name) & (frame["metric"] == "accuracy")] for name in ("imagenet_200", "imagenet_r"))
    of_pair = plain.set_index(["run", "epoch"])["value"]
    of_pair = of_pair.reindex(pd.MultiIndex.from_frame(shifted[["run", "epoch"]])).to_numpy()
    gap = shifted.assign(metric="gap", value=of_pair - shifted["value"].to_numpy(), n_correct=np.nan, n_total=np.nan)
    return gap[gap["value"].notna()]


def renditions(dataset: str, image_names: Iterable[str]) -> dict[str, np.ndarray]:
    """{rendition: its images [n] bool} of ImageNet-R, by the names of its files: art, cartoon, sketch, ...; {} where names do not tell."""
    if dataset not in RENDITIONS:
        return {}
    matches = [re.fullmatch(r"(?:.*/)?(\w+?)_\d+", str(name).rpartition(".")[0]) for name in image_names]
    kinds = np.array([match[1] for match in matches if match])
    return {str(kind): kinds == kind for kind in np.unique(kinds)} if len(kinds) == len(matches) else {}


def validation(workdir: pathlib.Path | str) -> str:
    """Scores of the validation sets after the last epoch, in words: mean over the seeds that stayed finite, least and most of them."""
    frame = scores(workdir)
    last = frame[(frame["role"] == "val") & (frame["status"] == "ok") & (frame["epoch"] == frame["epoch"].max())]
    texts = []
    for (dataset, metric), values in last.groupby(["dataset", "metric"], sort=False)["value"]:
        if metric in SHOWN:
            low, mean, high = (100 * value for value in (values.min(), values.mean(), values.max()))
            texts.append(f"{dataset} {metric} {mean:.1f} % ({low:.1f} to {high:.1f}, {len(values)} seeds)")
    return f"after epoch {frame['epoch'].max()}: {', '.join(texts) or 'no seed is finite'}"


def answers(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a set's answers, EPOCH.npz, in the order of epochs; not what synchronisation and file systems leave next to them."""
    paths = [path for path in folder.glob("*.npz") if re.fullmatch(r"0|[1-9][0-9]*", path.stem) and path.is_file()]
    return sorted(paths, key=lambda path: int(path.stem))


def other_sets(workdir: pathlib.Path | str) -> list[str]:
    """Sets that have answers in WORKDIR/responses, and that sets.json does not describe (any more)."""
    workdir = pathlib.Path(workdir)
    folders = {path for path in (workdir / "responses").iterdir() if path.is_dir() and answers(path)}
    return sorted({path.name for path in folders} - set(_about(workdir)[1]["sets"]))


def strays(workdir: pathlib.Path | str) -> list[str]:
    """What lies in WORKDIR/responses, and in the folders of its sets, and is neither answers nor what describes them."""
    responses = pathlib.Path(workdir) / "responses"
    sets = [responses / name for name in _about(pathlib.Path(workdir))[1]["sets"]]
    known = {
        responses / "sets.json",
        *sets,
        *(responses / name for name in other_sets(workdir)),
        *(folder / "images.csv" for folder in sets),
    }
    known |= {path for folder in sets for path in (*answers(folder), *folder.glob("*.partial"))}  # an evaluation may be under way
    paths = [path for folder in (responses, *sets) for path in folder.iterdir()]
    return sorted(str(path.relative_to(responses)) for path in paths if path not in known)


def confusions(workdir: pathlib.Path | str, chosen: pd.DataFrame) -> pd.DataFrame:
    """Which answers the images of each class got, for the rows algorithm, run, dataset, epoch of `chosen` that are this run's.

    Columns algorithm, run, dataset, epoch, label, answer (names of classes; "none" where the logits were not finite), images; one row for
    each pair that occurs. Multi-label sets, where no class is confused with another, have none.
    """
    workdir, parts = pathlib.Path(workdir), []
    algorithm, about = _about(workdir)
    of_one_class = [name for name, facts in about["sets"].items() if "targets" not in facts]
    chosen = chosen[(chosen["algorithm"] == algorithm) & chosen["dataset"].isin(of_one_class)]
    for (dataset, epoch), rows in chosen.groupby(["dataset", "epoch"], sort=False):
        given = trials(workdir, dataset, int(epoch))
        names = np.array([*given.classes, "none"])
        for seed, answers in zip(given.seeds, given.response, strict=True):
            if str(seed) not in set(rows["run"].astype(str)):
                continue
            pairs, counts = np.unique(np.stack([given.label, answers]), axis=1, return_counts=True)
            same = {"algorithm": algorithm, "run": seed, "dataset": dataset, "epoch": int(epoch)}
            parts.append(pd.DataFrame({**same, "label": names[pairs[0]], "answer": names[pairs[1]], "images": counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


class Trials(NamedTuple):
    """What the seeds of a run answered to the images of a set at one epoch."""

    name: np.ndarray  # [n] of images
    label: np.ndarray  # [n]
    bias: np.ndarray  # [n]
    response: np.ndarray  # [S, n]: index into classes, -1 for none
    seeds: np.ndarray  # [S]
    alive: np.ndarray  # [S] bool: still finite
    classes: list[str]
    anomaly: np.ndarray | None = None  # [n] bool: images of no class
    confidence: np.ndarray | None = None  # [S, n]: largest probability, NaN for none; older answers have none
    targets: np.ndarray | None = None  # [n, classes] of zeros and ones, of a multi-label set; its labels are -1
    scores: np.ndarray | None = None  # [S, n, classes] float16: logits, of a multi-label set
    item: np.ndarray | None = None  # [n] str, the same for images that show one item; "" if unknown


def trials(workdir: pathlib.Path, dataset: str, epoch: int) -> Trials:
    """The answers to a set at one epoch. Raises FileNotFoundError, with the epochs there are, where it has none.

    Raises ValueError for a multi-label set, whose images are not answered with one class.
    """
    found = all_trials(workdir, dataset, epoch)
    if found.targets is not None:
        folder = workdir / "responses" / dataset
        raise ValueError(f"{folder}: images have several classes or none, so no answer is right or wrong: leave {dataset} out")
    return found


def all_trials(workdir: pathlib.Path, dataset: str, epoch: int) -> Trials:
    """The same of any set, also of a multi-label one, with its scores."""
    _, about = _about(workdir)
    facts, path = about["sets"][dataset], workdir / "responses" / dataset / f"{epoch}.npz"
    if not path.is_file():
        there = ", ".join(other.stem for other in answers(path.parent))
        raise FileNotFoundError(
            f"{path} is missing: of {dataset} there are answers of epochs {there or '(none)'}; run: jaxbed eval {workdir}"
        )
    images = _images(workdir, dataset, facts)
    response, seeds, alive, kept = _answers(workdir, path, len(images.label), facts)
    classes = facts.get("classes", about.get("classes", []))
    known = (images.name, images.label, images.bias, response, seeds, alive, classes, images.anomaly, kept.get("confidence"))
    if images.targets is None:
        return Trials(*known, item=images.item)
    return Trials(*known, label_lists.targets(images.targets, len(about["classes"])), kept.get(LOGITS), images.item)


def answers_of(workdir: pathlib.Path, dataset: str, epoch_of: Mapping[int, int]) -> tuple[measures.Answers, list[str]]:
    """What each seed {seed: epoch} answered to a set, in that order, and the names of its classes. Raises ValueError for another seed."""
    given = {epoch: trials(workdir, dataset, epoch) for epoch in sorted(set(epoch_of.values()))}
    rows = {(int(seed), epoch): row for epoch, each in given.items() for seed, row in zip(each.seeds, each.response, strict=True)}
    if missing := [pair for pair in epoch_of.items() if pair not in rows]:
        raise ValueError(f"seed {missing[0][0]} has no answers to {dataset} at epoch {missing[0][1]}: run: jaxbed eval {workdir}")
    images = next(iter(given.values()))
    response = np.stack([rows[pair] for pair in epoch_of.items()])
    return measures.Answers(response, images.label, images.bias, _about(workdir)[1]["data"]["cue"]), images.classes


def _about(workdir: pathlib.Path) -> tuple[str, dict]:
    """(name of the algorithm, content of sets.json)."""
    config, sets = workdir / "config.json", workdir / "responses" / "sets.json"
    for path, cure in (
        (config, f"{workdir} is not the workdir of a run (python -m jaxbed.main makes one)"),
        (sets, f"run: jaxbed eval {workdir}"),
    ):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: {cure}")
    return files.read_object(config)["name"], read_sets(sets)


def _images(workdir: pathlib.Path, dataset: str, facts: dict) -> Images:
    """What is known of a set's images, also where a spreadsheet saved the table again; facts are those of the set.

    Raises ValueError for a table that lacks a column or holds other numbers than classes, and for one of other images, or in another
    order, than was evaluated.
    """
    path, cure = workdir / "responses" / dataset / "images.csv", f"to rewrite it: jaxbed eval {workdir}"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run: jaxbed eval {workdir}")
    try:
        images = image_tables.read(path)
    except ValueError as error:
        raise ValueError(f"{error}; {cure}") from error
    if "images" in facts and facts["images"] != digest(images.name, images.label, images.bias):
        raise ValueError(f"{path} lists other images, or in another order, than sets.json describes; {cure}")
    if "real" in facts and (images.real is None or facts["real"] != label_lists.digest(images.real)):
        raise ValueError(f"{path} has other lists of classes in its column 'real' than sets.json describes; {cure}")
    if "targets" in facts and (images.targets is None or facts["targets"] != label_lists.digest(images.targets)):
        raise ValueError(f"{path} has other lists of classes in its column 'targets' than sets.json describes; {cure}")
    return images


def digest(names: Iterable[str], label: np.ndarray, bias: np.ndarray) -> str:
    """Of which images answers are about, in their order."""
    hashed = hashlib.sha256("\n".join(names).encode())
    hashed.update(np.stack([label, bias]).astype("<i8").tobytes())
    return hashed.hexdigest()[:16]


def _answers(workdir: pathlib.Path, path: pathlib.Path, images: int, facts: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict]:
    """(responses [S, n], seeds [S], alive [S], {of SCORES: [S, n], of LOGITS: [S, n, classes]}) of a file; facts are those of its set."""
    stored = read_answers(path, images, f"delete it, then: jaxbed eval {workdir}")
    response, seeds, alive = (stored[name] for name in ANSWERS)
    asked = str(stored["asked"]) if "asked" in stored else facts.get("identity")
    if asked != facts.get("identity", asked):
        raise ValueError(f"{path} answers other images, or by another decision, than sets.json describes: jaxbed eval {workdir}")
    if response.shape[1] != images:
        cure = f"delete {path.parent}, then: jaxbed eval {workdir}"
        raise ValueError(f"{path} answers {response.shape[1]} images, and images.csv lists {images}: {cure}")
    return response, seeds, alive, {name: stored[name] for name in (*SCORES, LOGITS) if name in stored}
