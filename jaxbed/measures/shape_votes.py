"""Answers to images with conflicting cues, class by class: how many name the shape, and how many the texture.

Source: Geirhos et al., "ImageNet-trained CNNs are biased towards texture" (2019). Their toolbox, model-vs-human, divides the shares of
shape and of texture by all images; here images whose cues agree do not count.
"""

import pathlib
from collections.abc import Mapping

import numpy as np
import pandas as pd

from jaxbed.evaluation import metrics
from jaxbed.evaluation.measures import Answers


def count(answers: Answers) -> pd.DataFrame:
    """label, shape, texture, images, of all seeds together: a row for each class that has images with conflicting cues."""
    label = answers.label[answers.conflicting]
    to_shape, to_texture = (
        (answers.response == cue)[:, answers.conflicting].sum(0) for cue in (answers.label, answers.bias)
    )  # [n] each: how many seeds
    each = pd.DataFrame({"label": label, "shape": to_shape, "texture": to_texture, "images": len(answers.response)})
    return each.groupby("label", as_index=False).sum()


def of_run(workdir: pathlib.Path, dataset: str, epoch_of: Mapping[int, int]) -> pd.DataFrame:
    """`count` of the answers that evaluation kept of each seed {seed: epoch}, with the names of classes as `label`."""
    answers, classes = metrics.answers_of(workdir, dataset, epoch_of)
    counts = count(answers)
    return counts.assign(label=np.array(classes)[counts["label"]])


def interval(shape: int, texture: int, seeds: int) -> tuple[float, float]:
    """Wilson's 95 % interval of the share of answers that name the shape, among all that name one of the two.

    It is that of one seed's answers, for seeds answer the same images.
    """
    import scipy

    of_seed = scipy.stats.binomtest(round(shape / seeds), round((shape + texture) / seeds))
    low, high = of_seed.proportion_ci(method="wilson")
    return float(low), float(high)
