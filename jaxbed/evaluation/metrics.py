"""From answers to numbers. Reads what `evaluate` wrote; knows neither JAX nor the network.

Terms, for one seed and one set. An image is *aligned* where its bias votes for its label, *conflicting* where it votes for
another class.

accuracy        correct / all
aligned         accuracy on the aligned images
conflicting     accuracy on the conflicting images
acc_diff        aligned - conflicting
ac_score        2·aligned·conflicting / (aligned + conflicting); 0 where both are 0 (Lee et al., 2022)
eo_pooled       conflicting / aligned: equality of opportunity of all classes together
eo_macro        mean over classes of min(r, 1/r), r the same ratio within a class; 0 where only one of the two is 0, absent where a class
                is never right
eo_pos          r of class 1, where there are two classes
worst_group     lowest accuracy of a non-empty (label, bias) cell, images without a bias apart; n_total is that cell's size
group_mean      mean of the cells' accuracies
adjusted        mean of the cells' accuracies, each weighted by its share of the training images (Sagawa et al., 2020, "average accuracy" of
                Waterbirds); absent where a cell that was trained on has no image in the set
cue_accuracy    answers equal to the bias / conflicting images
shape_bias      answers equal to the label / answers equal to label or bias, on the conflicting images, pooled (Geirhos et al.,
                2019); only where the bias is texture

A metric whose images do not exist in a set is absent, never 0.
"""

import hashlib
import pathlib
import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from jaxbed.evaluation.answers import ANSWERS, read_answers, read_sets
from jaxbed.stats import names
from jaxbed.stats.reading import delimited, numbers
from jaxbed.system import files

Counts = tuple[np.ndarray, np.ndarray, np.ndarray]  # values, correct answers and answers of each seed [S]
COLUMNS = ["algorithm", "run", "dataset", "epoch", "metric", "value", "n_correct", "n_total", "role", "status"]


def measure(
    response: np.ndarray, label: np.ndarray, bias: np.ndarray, bias_name: str, training_cells: Iterable[Sequence[int]] = ()
) -> dict[str, Counts]:
    """{metric: (value [S], n_correct [S], n_total [S])} of answers [S, n] to n images; counts are NaN where a metric is no ratio.

    training_cells: (label, bias, images) of each cell of the training set.
    """
    correct, to_bias = response == label, (response == bias) & (bias >= 0)
    aligned, conflicting = bias == label, (bias >= 0) & (bias != label)
    result = {"accuracy": _ratio(correct.sum(1), len(label))}
    if not (bias >= 0).any():
        return result
    if aligned.any():
        result["aligned"] = _ratio(correct[:, aligned].sum(1), aligned.sum())
    if conflicting.any():
        result["conflicting"] = _ratio(correct[:, conflicting].sum(1), conflicting.sum())
        hits, cue_hits = correct[:, conflicting].sum(1), to_bias[:, conflicting].sum(1)
        result["cue_accuracy"] = _ratio(cue_hits, conflicting.sum())
        if bias_name == "texture":
            result["shape_bias"] = _ratio(hits, hits + cue_hits)
    if aligned.any() and conflicting.any():
        a, c = result["aligned"][0], result["conflicting"][0]
        result["acc_diff"] = _plain(a - c)
        result["ac_score"] = _plain(ac_score(a, c))
        result |= opportunity(correct, label, aligned, conflicting)
    first, cell, sizes = np.unique(label * (bias.max() + 2) + bias + 1, return_index=True, return_inverse=True, return_counts=True)[1:]
    hits = np.stack([np.bincount(cell, row, len(sizes)) for row in correct])  # [S, cells]
    worst = (hits / sizes).argmin(1)
    result["worst_group"] = _ratio(hits[np.arange(len(hits)), worst], sizes[worst])
    result["group_mean"] = _plain((hits / sizes).mean(1))
    trained = {(y, b): count for y, b, count in training_cells}
    weight = np.array([trained.pop((y, b), 0) for y, b in zip(label[first], bias[first], strict=True)], float)
    if weight.any() and not trained:
        result["adjusted"] = _plain((hits / sizes) @ (weight / weight.sum()))
    return result


def opportunity(correct: np.ndarray, label: np.ndarray, aligned: np.ndarray, conflicting: np.ndarray) -> dict[str, Counts]:
    """Equality of opportunity (Hardt et al., 2016) of answers [S, n], over the classes that have aligned and conflicting images."""

    def ratio(chosen: np.ndarray) -> np.ndarray:  # [S]
        a, c = (correct[:, chosen & group].mean(1) for group in (aligned, conflicting))
        return np.divide(c, a, out=np.where(c > 0, np.inf, np.nan), where=a > 0)

    classes = [y for y in np.unique(label) if (aligned & (label == y)).any() and (conflicting & (label == y)).any()]
    each = np.stack([ratio(label == y) for y in classes]) if classes else np.full((1, len(correct)), np.nan)
    with np.errstate(divide="ignore"):
        folded = np.minimum(each, 1 / each)
    found = {"eo_pooled": _plain(_finite(ratio(label >= 0)))}
    found["eo_macro"] = _plain(folded.mean(0))
    if label.max() == 1 and classes[-1:] == [1]:
        found["eo_pos"] = _plain(_finite(each[-1]))
    return found


def _finite(value: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(value), value, np.nan)


def ac_score(aligned: np.ndarray, conflicting: np.ndarray) -> np.ndarray:
    """Harmonic mean of aligned and conflicting accuracy; 0 where both are 0."""
    total = np.asarray(aligned, float) + conflicting
    return np.divide(2 * np.asarray(aligned) * conflicting, total, out=np.zeros_like(total), where=total > 0)


def scores(workdir: pathlib.Path | str) -> pd.DataFrame:
    """All metrics of a run, one row per (seed, set, epoch, metric); columns COLUMNS, values as fractions.

    run is the seed. role is val, test or ood. status is "diverged" for a seed from the epoch on in which it became non-finite,
    whose answers are those of its last finite state; "ok" otherwise.
    """
    workdir = pathlib.Path(workdir)
    algorithm, about = _about(workdir)
    rows: dict[str, list] = {column: [] for column in COLUMNS[1:]}
    for dataset, facts in about["sets"].items():
        folder = workdir / "responses" / dataset
        label, bias = _labels(workdir, dataset, facts)
        paths = answers(folder)
        if not paths:
            raise FileNotFoundError(f"{folder} holds no answers: run: jaxbed eval {workdir}")
        for path in paths:
            response, seeds, alive = _answers(workdir, path, len(label), facts)
            status = np.where(alive, "ok", "diverged")
            for metric, (value, n_correct, n_total) in measure(
                response, label, bias, about["data"]["cue"], about.get("training_cells", ())
            ).items():
                same = (dataset, int(path.stem), metric, facts["role"])
                for column, array in zip(
                    ("run", "value", "n_correct", "n_total", "status", "dataset", "epoch", "metric", "role"),
                    (seeds, value, n_correct, n_total, status, *(np.full(len(seeds), x) for x in same)),
                    strict=True,
                ):
                    rows[column].append(array)
    columns = {column: np.concatenate(arrays) for column, arrays in rows.items()}
    frame = pd.DataFrame({"algorithm": algorithm, **columns})[COLUMNS]
    return frame[frame["value"].notna()].reset_index(drop=True)  # shape bias, where no answer names shape or texture


def validation(workdir: pathlib.Path | str) -> str:
    """Scores of the validation sets after the last epoch, in words: mean over the seeds that stayed finite, least and most of them."""
    frame = scores(workdir)
    last = frame[(frame["role"] == "val") & (frame["status"] == "ok") & (frame["epoch"] == frame["epoch"].max())]
    found = []
    for (dataset, metric), values in last.groupby(["dataset", "metric"], sort=False)["value"]:
        if metric in ("accuracy", "aligned", "conflicting"):
            low, mean, high = (100 * value for value in (values.min(), values.mean(), values.max()))
            found.append(f"{dataset} {metric} {mean:.1f} % ({low:.1f} to {high:.1f}, {len(values)} seeds)")
    return f"after epoch {frame['epoch'].max()}: {', '.join(found) or 'no seed is finite'}"


def answers(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a set's answers, EPOCH.npz, in the order of epochs; not what synchronisation and file systems leave beside them."""
    found = [path for path in folder.glob("*.npz") if re.fullmatch(r"0|[1-9][0-9]*", path.stem) and path.is_file()]
    return sorted(found, key=lambda path: int(path.stem))


def strays(workdir: pathlib.Path | str) -> list[str]:
    """What lies in WORKDIR/responses, and in the folders of its sets, and is neither answers nor what describes them."""
    responses = pathlib.Path(workdir) / "responses"
    sets = [responses / name for name in _about(pathlib.Path(workdir))[1]["sets"]]
    known = {responses / "sets.json", *sets, *(folder / "images.csv" for folder in sets)}
    known |= {path for folder in sets for path in (*answers(folder), *folder.glob("*.partial"))}  # an evaluation may be under way
    there = [path for folder in (responses, *sets) for path in folder.iterdir()]
    return sorted(str(path.relative_to(responses)) for path in there if path not in known)


def confusions(workdir: pathlib.Path | str, chosen: pd.DataFrame) -> pd.DataFrame:
    """Which answers the images of each class got, for the rows algorithm, run, dataset, epoch of `chosen` that are this run's.

    Columns algorithm, run, dataset, epoch, label, answer (names of classes; "none" where the logits were not finite), images; one row for
    each pair that occurs.
    """
    workdir, parts = pathlib.Path(workdir), []
    algorithm, about = _about(workdir)
    for (dataset, epoch), rows in chosen[chosen["algorithm"] == algorithm].groupby(["dataset", "epoch"], sort=False):
        names = np.array([*about["sets"][dataset].get("classes", about["classes"]), "none"])
        label, _ = _labels(workdir, dataset, about["sets"][dataset])
        response, seeds, _ = _answers(workdir, workdir / "responses" / dataset / f"{int(epoch)}.npz", len(label), about["sets"][dataset])
        for seed, answers in zip(seeds, response, strict=True):
            if str(seed) not in set(rows["run"].astype(str)):
                continue
            pairs, counts = np.unique(np.stack([label, answers]), axis=1, return_counts=True)
            same = {"algorithm": algorithm, "run": seed, "dataset": dataset, "epoch": int(epoch)}
            parts.append(pd.DataFrame({**same, "label": names[pairs[0]], "answer": names[pairs[1]], "images": counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _about(workdir: pathlib.Path) -> tuple[str, dict]:
    """(name of the algorithm, content of sets.json)."""
    config, sets = workdir / "config.json", workdir / "responses" / "sets.json"
    for path, cure in ((config, "python -m jaxbed.main --config=... makes one"), (sets, f"run: jaxbed eval {workdir}")):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: {cure}")
    return files.read_object(config)["name"], read_sets(sets)


def _labels(workdir: pathlib.Path, dataset: str, facts: dict) -> tuple[np.ndarray, np.ndarray]:
    """(labels, biases) of a set's images, also where a spreadsheet saved the table again; facts are those of the set.

    Raises ValueError for a table that lacks a column or holds other numbers than classes, and for one of other images, or in another
    order, than was evaluated.
    """
    path, cure = workdir / "responses" / dataset / "images.csv", f"to write it anew: jaxbed eval {workdir}"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run: jaxbed eval {workdir}")
    try:
        name, label, bias = _as_written(path) or _as_saved_again(path)
    except ValueError as error:
        raise ValueError(f"{error}; {cure}") from error
    if "images" in facts and facts["images"] != digest(name, label, bias):
        raise ValueError(f"{path} lists other images, or in another order, than sets.json tells; {cure}")
    return label, bias


def _as_written(path: pathlib.Path) -> tuple[pd.Series, np.ndarray, np.ndarray] | None:
    """Names, labels and biases of a table that is as `evaluate` writes it, 20 times as fast; None for any other."""
    with path.open("rb") as file:
        if file.readline() != b"name,label,cue\n":
            return None
    try:
        images = pd.read_csv(path, dtype={"name": str}, keep_default_na=False)
    except ValueError:
        return None
    whole = isinstance(images.index, pd.RangeIndex) and all(images[column].dtype == np.int64 for column in ("label", "cue"))
    if not whole or (images["label"] < 0).any() or (images["cue"] < -1).any():
        return None
    return images["name"].map(names.from_cell), images["label"].to_numpy(), images["cue"].to_numpy()


def _as_saved_again(path: pathlib.Path) -> tuple[pd.Series, np.ndarray, np.ndarray]:
    """The same of a table that a spreadsheet saved: other separators, order of columns and ways to write numbers."""
    images = delimited.read(path)
    chosen = {name: names.find(name, images.columns) for name in ("name", "label", "cue")}
    if lost := [name for name, own in chosen.items() if own is None]:
        raise ValueError(f"{path}: column {', '.join(map(repr, lost))} is missing, found {names.listed(images.columns)}")
    label, bias = (_classes(images[chosen[name]], name, least, str(path)) for name, least in (("label", 0), ("cue", -1)))
    return images[chosen["name"]], label, bias


def digest(names: Iterable[str], label: np.ndarray, bias: np.ndarray) -> str:
    """Of which images answers are about, in their order."""
    found = hashlib.sha256("\n".join(names).encode())
    found.update(np.stack([label, bias]).astype("<i8").tobytes())
    return found.hexdigest()[:16]


def _classes(given: pd.Series, name: str, least: int, source: str) -> np.ndarray:
    values = numbers.read(given, "run", source, [], name)
    strange = ~((values >= least) & (values % 1 == 0))
    if strange.any():
        raise ValueError(f"{source}: {name} {names.quoted(given[strange].iloc[0])} in line {strange.idxmax()} is not the number of a class")
    return values.to_numpy(np.int64)


def _answers(workdir: pathlib.Path, path: pathlib.Path, images: int, facts: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(responses [S, n], seeds [S], alive [S]) of a file; facts are those of its set."""
    stored = read_answers(path, f"delete it, then: jaxbed eval {workdir}")
    response, seeds, alive = (stored[name] for name in ANSWERS)
    asked = str(stored["asked"]) if "asked" in stored else facts.get("identity")
    if asked != facts.get("identity", asked):
        raise ValueError(f"{path} answers other images, or by another decision, than sets.json and images.csv tell: jaxbed eval {workdir}")
    if response.shape[1] != images:
        cure = f"delete {path.parent}, then: jaxbed eval {workdir}"
        raise ValueError(f"{path} answers {response.shape[1]} images, and images.csv lists {images}: {cure}")
    return response, seeds, alive


def _ratio(correct: np.ndarray, total: np.ndarray | int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    total = np.broadcast_to(np.asarray(total, float), correct.shape)
    value = np.divide(correct, total, out=np.full(correct.shape, np.nan), where=total > 0)
    return value, correct.astype(float), total


def _plain(value: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nothing = np.full(value.shape, np.nan)
    return value, nothing, nothing
