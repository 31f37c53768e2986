"""Measures: from the answers of all seeds to one set of images to numbers. Knows neither JAX nor files.

An image is *aligned* where its bias votes for its label, *conflicting* where it votes for another class. A measure is one function of
`Answers` in the table MEASURES, by the name that it has in every table:

accuracy        correct / all
real_accuracy   answers in the list of their image / images whose list is not empty (ReaL, Beyer et al., 2020); only of sets with lists
kept_accuracy   the same over the images that count, where only some do: model-vs-human's, without excluded conditions
aligned         accuracy on the aligned images
conflicting     accuracy on the conflicting images
cue_accuracy    answers equal to the bias / conflicting images
shape_bias      answers equal to the label / answers equal to label or bias, on the conflicting images, pooled (Geirhos et al., 2019);
                only where the bias is texture
acc_diff        aligned - conflicting
ac_score        2·aligned·conflicting / (aligned + conflicting); 0 where both are 0 (Lee et al., 2022)
eo_pooled       conflicting / aligned: equality of opportunity (Hardt et al., 2016) of all classes together
eo_macro        mean over classes of min(r, 1/r), r the same ratio within a class; 0 where only one of the two is 0, absent where a class
                is never right
eo_pos          r of class 1, where there are two classes
worst_group     lowest accuracy of a non-empty (label, bias) cell, images without a bias apart; n_total is that cell's size
group_mean      mean of the cells' accuracies
adjusted        mean of the cells' accuracies, each weighted by its share of the training images (Sagawa et al., 2020, "average accuracy" of
                Waterbirds); absent where a cell that was trained on has no image in the set

accuracy_<name> accuracy on the images of a group, such as a rendition of ImageNet-R

Sets with anomalies (ImageNet-O) have ANOMALIES instead: how well confidence, or energy, tells those from images of a class. CALIBRATION is
only computed where one of its measures is asked for by name. For both see `calibration`. Multi-label sets have MULTI_LABEL instead, areas
under precision-recall curves: see `multi_label`.

A measure whose images do not exist in a set is absent, never 0.
"""

import functools
import importlib
from collections.abc import Callable

import numpy as np

from jaxbed.evaluation import calibration, label_lists, multi_label
from jaxbed.evaluation.given import Answers, Counts, Measure, plain, ratio


def accuracy(answers: Answers) -> Counts:
    return ratio(answers.correct.sum(1), len(answers.label))


def real_accuracy(answers: Answers) -> Counts | None:
    if answers.real is None:
        return None
    return ratio(label_lists.listed(answers.response, answers.real).sum(1), (answers.real >= 0).any(1).sum())


def kept_accuracy(answers: Answers) -> Counts | None:
    return None if answers.kept is None else ratio(answers.correct[:, answers.kept].sum(1), answers.kept.sum())


def aligned(answers: Answers) -> Counts | None:
    images = answers.aligned
    return ratio(answers.correct[:, images].sum(1), images.sum()) if images.any() else None


def conflicting(answers: Answers) -> Counts | None:
    images = answers.conflicting
    return ratio(answers.correct[:, images].sum(1), images.sum()) if images.any() else None


def cue_accuracy(answers: Answers) -> Counts | None:
    images = answers.conflicting
    return ratio(answers.to_bias, images.sum()) if images.any() else None


def shape_bias(answers: Answers) -> Counts | None:
    if answers.bias_name != "texture" or (to_shape := conflicting(answers)) is None:
        return None
    hits = to_shape.n_correct.astype(int)
    return ratio(hits, hits + answers.to_bias)


def acc_diff(answers: Answers) -> Counts | None:
    one, other = aligned(answers), conflicting(answers)
    return plain(one.value - other.value) if one and other else None


def ac_score(answers: Answers) -> Counts | None:
    one, other = aligned(answers), conflicting(answers)
    return plain(harmonic_mean(one.value, other.value)) if one and other else None


def harmonic_mean(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """2ab / (a + b); 0 where both are 0."""
    total = np.asarray(one, float) + other
    return np.divide(2 * np.asarray(one) * other, total, out=np.zeros_like(total), where=total > 0)


def _opportunity(answers: Answers, images: np.ndarray) -> np.ndarray:
    """Accuracy on the conflicting of some images over that on the aligned ones, [S]."""
    a, c = (answers.correct[:, images & group].mean(1) for group in (answers.aligned, answers.conflicting))
    return np.divide(c, a, out=np.where(c > 0, np.inf, np.nan), where=a > 0)


def _opportunities(answers: Answers) -> dict[int, np.ndarray]:
    """{class: the same of its images}, of the classes that have aligned and conflicting ones."""
    of_class = {int(y): answers.label == y for y in np.unique(answers.label)}
    both = {y: images for y, images in of_class.items() if (answers.aligned & images).any() and (answers.conflicting & images).any()}
    return {y: _opportunity(answers, images) for y, images in both.items()}


def _finite(value: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(value), value, np.nan)


def eo_pooled(answers: Answers) -> Counts | None:
    if not (answers.aligned.any() and answers.conflicting.any()):
        return None
    return plain(_finite(_opportunity(answers, answers.label >= 0)))


def eo_macro(answers: Answers) -> Counts | None:
    if not (answers.aligned.any() and answers.conflicting.any()):
        return None
    ratios = list(_opportunities(answers).values())
    each = np.stack(ratios) if ratios else np.full((1, len(answers.correct)), np.nan)
    with np.errstate(divide="ignore"):
        return plain(np.minimum(each, 1 / each).mean(0))


def eo_pos(answers: Answers) -> Counts | None:
    ratios = _opportunities(answers)
    return plain(_finite(ratios[1])) if answers.label.max() == 1 and 1 in ratios else None


def worst_group(answers: Answers) -> Counts:
    hits, sizes, _ = answers.cells
    worst = (hits / sizes).argmin(1)
    return ratio(hits[np.arange(len(hits)), worst], sizes[worst])


def group_mean(answers: Answers) -> Counts:
    hits, sizes, _ = answers.cells
    return plain((hits / sizes).mean(1))


def adjusted(answers: Answers) -> Counts | None:
    hits, sizes, first = answers.cells
    trained = {(y, b): count for y, b, count in answers.training_cells}
    cells = zip(answers.label[first], answers.bias[first], strict=True)
    weight = np.array([trained.pop((y, b), 0) for y, b in cells], float)
    return plain((hits / sizes) @ (weight / weight.sum())) if weight.any() and not trained else None


def _of_confidence(function: Callable[..., np.ndarray]) -> Measure:
    """A measure of how far confidence can be believed; NaN for a seed that did not answer every image."""

    def measured(answers: Answers) -> Counts | None:
        return None if answers.confidence is None else plain(function(answers.confidence, answers.correct))

    return measured


def temperature(answers: Answers) -> Counts | None:
    return None if answers.temperature is None else plain(answers.temperature)


def rms_calibration_error_at_temperature(answers: Answers) -> Counts | None:
    """The RMS error of the confidence that the scores have at the temperature; only where they are kept."""
    if answers.temperature is None or answers.scores is None:
        return None
    return plain(calibration.rms_error(calibration.confidence_at(answers.temperature, answers.scores), answers.correct))


def _of_anomalies(function: Callable[[np.ndarray, np.ndarray], np.ndarray], score: str, answers: Answers) -> Counts | None:
    """A measure of how well a score tells images of no class from the others."""
    given = answers.energy if score == "energy" else answers.confidence
    if given is None or answers.anomaly is None:
        return None
    return plain(function(given if score == "energy" else -given, answers.anomaly))


MEASURES: dict[str, Measure] = {
    "accuracy": accuracy,
    "real_accuracy": real_accuracy,
    "kept_accuracy": kept_accuracy,
    "aligned": aligned,
    "conflicting": conflicting,
    "cue_accuracy": cue_accuracy,
    "shape_bias": shape_bias,
    "acc_diff": acc_diff,
    "ac_score": ac_score,
    "eo_pooled": eo_pooled,
    "eo_macro": eo_macro,
    "eo_pos": eo_pos,
    "worst_group": worst_group,
    "group_mean": group_mean,
    "adjusted": adjusted,
}
CALIBRATION: dict[str, Measure] = {  # computed where they are asked for by name
    "rms_calibration_error": _of_confidence(calibration.rms_error),
    "rms_calibration_error_as_released": _of_confidence(functools.partial(calibration.rms_error, drop_last_bin=True)),
    "mad_calibration_error": _of_confidence(calibration.mad_error),
    "mad_calibration_error_as_released": _of_confidence(functools.partial(calibration.mad_error, drop_last_bin=True)),
    "aurra": _of_confidence(calibration.aurra),
    "soft_f1": _of_confidence(calibration.soft_f1),
    "temperature": temperature,
    "rms_calibration_error_at_temperature": rms_calibration_error_at_temperature,
}
ANOMALIES: dict[str, Measure] = {  # of sets with images of no class, which have no others
    f"{name}_{score}": functools.partial(_of_anomalies, function, score)
    for name, function in (("aupr", calibration.aupr), ("auroc", calibration.auroc), ("fpr95", calibration.fpr95))
    for score in ("softmax", "energy")
}
MULTI_LABEL: dict[str, Measure] = {  # of sets whose images have several classes, which have no others
    "pr_auc_weighted": multi_label.pr_auc_weighted,
    "ap_weighted": multi_label.ap_weighted,
    "ap_macro": multi_label.ap_macro,
}
WITHOUT_BIAS = ("accuracy", "real_accuracy", "kept_accuracy")  # of jaxbed's own, what is asked of a set whose images have no bias


def measure(answers: Answers) -> dict[str, Counts]:
    """All measures that exist for a set, by name."""
    biased, added = (answers.bias >= 0).any(), {name for name in MEASURES if ":" in name or name in CALIBRATION}
    applicable = {name: function for name, function in MEASURES.items() if biased or name in WITHOUT_BIAS or name in added}
    if answers.targets is not None:
        applicable = MULTI_LABEL | {name: MEASURES[name] for name in added if ":" in name}
    elif answers.anomaly is not None:
        applicable = ANOMALIES
    values = {name: function(answers) for name, function in applicable.items()}
    if answers.anomaly is None:
        values |= {f"accuracy_{name}": ratio(answers.correct[:, images].sum(1), images.sum()) for name, images in answers.groups.items()}
    size = (len(answers.response),)
    for name, value in values.items():
        if value is not None and [np.shape(array) for array in value] != [size] * 3:
            shapes = ", ".join(str(list(np.shape(array))) for array in value)
            raise ValueError(f"measure {name} gives {shapes}, and must give three arrays of {list(size)}: one number for each seed")
    return {name: value for name, value in values.items() if value is not None}


def is_extra(name: str) -> bool:
    """Whether `add` is needed before a measure of that name is computed."""
    return ":" in name or name in CALIBRATION


def needs_temperature() -> bool:
    """Whether a measure was added that reads `Answers.temperature`."""
    return "temperature" in MEASURES or "rms_calibration_error_at_temperature" in MEASURES


def add(name: str) -> None:
    """Adds the measure `package.module:function`, or one of CALIBRATION, to the table, under that name.

    The module is imported. Raises ValueError without one.
    """
    if name in CALIBRATION:
        MEASURES[name] = CALIBRATION[name]
        return
    module, _, function = name.partition(":")
    try:
        measured = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ValueError(f"measure {name}: the module cannot be imported ({error}). If it lies in FOLDER: PYTHONPATH=FOLDER") from error
    if not callable(measured):
        raise ValueError(f"measure {name}: {module} has no function {function!r}; it takes an Answers and returns a Counts or None")
    MEASURES[name] = measured
