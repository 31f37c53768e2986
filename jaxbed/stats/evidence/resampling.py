"""Hierarchical paired bootstrap: seeds are drawn for each algorithm, then images, the same ones for all algorithms and seeds.

A score is in points (percent), higher is better, and is the mean of what each image contributes, or any other function of how often each
image is drawn, such as a mean average precision. The first of its 1 + RESAMPLES values is the score as measured, the others are resampled.

Closed forms: with one seed the interval is that of the images alone. Where images do not differ, the variance of the draws is s^2 / S, of S
seeds with the variance s^2. Source: Davison and Hinkley (1997), section 3.8. Differs: images are crossed with seeds, not nested within
them; and what seeds add to a draw is scaled by sqrt(S / (S - 1)), by which a plain bootstrap is too narrow. Images of one class are not
independent: where classes were chosen together with the images, as in ImageNet-A and -R, classes are drawn, with all their images. Where
images are of two kinds, such as anomalies and others, each kind keeps its number.
"""

import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxbed.stats.evidence.effects import Seeds
from jaxbed.stats.evidence.precision import Statistic

RESAMPLES, SEED = 2_000, 0
AT_ONCE = 4_000_000  # images that are drawn at once


class Sampled(NamedTuple):
    """Scores of algorithms on one set."""

    draws: dict[str, np.ndarray]  # {algorithm: [1 + RESAMPLES]}
    seeds: dict[str, int]  # {algorithm: number of seeds}; 0 where they are unknown
    images: int  # 0 where they are unknown
    of_image: dict[str, np.ndarray]  # {algorithm: [images]}: mean contribution over seeds; empty where it is unknown
    of_seeds: dict[str, float]  # {algorithm: s^2 / S}: what seeds add to the variance of its score; 0 where there is one, or it is unknown
    normal: bool = False  # whether draws are of a normal distribution: intervals are then exact
    unit: str = "images"  # what is drawn

    def part_of_seeds(self, pairs: Sequence[tuple[str, str]]) -> Seeds:
        """What seeds add to the errors of the differences of pairs (treated, control)."""
        several = [name for name in dict.fromkeys(itertools.chain(*pairs)) if self.of_seeds[name] > 0]
        sign = np.array([[int(name == treated) - int(name == control) for name in several] for treated, control in pairs])
        freedom = np.array([self.seeds[name] - 1 for name in several])
        return Seeds(sign.reshape(len(pairs), len(several)), np.array([self.of_seeds[name] for name in several]), freedom)

    def basis(self, *algorithms: str) -> str:
        """What an interval of these algorithms is about."""
        if self.normal:
            return "printed values, no seeds"
        single = [name for name in algorithms if self.seeds[name] == 1]
        if not self.images:
            return f"no interval: no answers per image, and a single seed of {single[0]}" if single else "seeds alone"
        if len(single) == len(algorithms):
            return f"{self.unit} alone (single seed)"
        return f"{self.unit} and seeds" + (f" (single seed of {single[0]})" if single else "")


def sample(
    name: str, scores: Mapping[str, np.ndarray], has_images: bool = True, cluster: np.ndarray | None = None, unit: str = "classes"
) -> Sampled:
    """Of scores {algorithm: [seeds, images]} on the set with this name, in points: means over images.

    cluster [images]: which group each is in, such as its class; groups are drawn with all their images instead of single images. unit: what
    groups are.

    The draws depend on the names of the set and of each algorithm only. Without images, scores are [seeds, 1]; the resampled values of an
    algorithm that then has one seed are NaN.
    """
    seeds = {algorithm: len(values) for algorithm, values in scores.items()}
    statistics = {algorithm: _mean(values) for algorithm, values in scores.items()}
    images = next(iter(scores.values())).shape[1]
    sampled = sample_statistics(name, statistics, seeds, images, cluster, unit="images" if cluster is None else unit)
    for algorithm in scores if not has_images else ():
        if seeds[algorithm] == 1:
            sampled.draws[algorithm][1:] = np.nan
    of_image = {algorithm: values.mean(0) for algorithm, values in scores.items()} if has_images else {}
    return sampled._replace(images=images * has_images, of_image=of_image)


def sample_statistics(
    name: str,
    statistics: Mapping[str, Statistic],
    seeds: Mapping[str, int],
    images: int,
    cluster: np.ndarray | None = None,
    kind: np.ndarray | None = None,
    unit: str = "images",
) -> Sampled:
    """The same of any scores {algorithm: function of how often images are drawn}; seeds {algorithm: number}; no image contributes alone.

    kind [images]: of which kind each is; as many of a kind are drawn as there are. With clusters there is one kind; unit: what is drawn.
    """
    draws = {algorithm: np.empty(1 + RESAMPLES) for algorithm in statistics}
    rows = {algorithm: _seeds(algorithm, seeds[algorithm]) for algorithm in statistics}
    groups = np.arange(images) if cluster is None else np.unique(cluster, return_inverse=True)[1]
    kinds = np.zeros(groups.max() + 1) if kind is None else kind
    streams = [(np.flatnonzero(kinds == each), _stream(name, number)) for number, each in enumerate(np.unique(kinds))]
    step = max(1, AT_ONCE // images)
    for first in range(0, RESAMPLES, step):
        drawn = slice(first, min(first + step, RESAMPLES))
        counts = np.empty((drawn.stop - first, len(kinds)))
        for members, rng in streams:
            counts[:, members] = _counts(rng, len(counts), len(members))
        counts = counts[:, groups]
        for algorithm, statistic in statistics.items():
            scores = statistic(counts)  # [resamples, seeds]
            middle, scale = scores.mean(1), np.sqrt(seeds[algorithm] / max(seeds[algorithm] - 1, 1))
            resampled = np.take_along_axis(scores, rows[algorithm][drawn], 1).mean(1)
            draws[algorithm][1 + first : 1 + drawn.stop] = middle + scale * (resampled - middle)
    of_seeds = {}
    for algorithm, statistic in statistics.items():
        (scores,) = statistic(np.ones((1, images)))
        draws[algorithm][0] = scores.mean()
        of_seeds[algorithm] = float(scores.var(ddof=1) / len(scores)) if len(scores) > 1 else 0.0
    return Sampled(draws, dict(seeds), images, {}, of_seeds, unit=unit)


def normal(values: Mapping[str, Mapping[str, tuple[float, float]]]) -> dict[str, Sampled]:
    """Draws of independent normal values {set: {algorithm: (score, its standard error)}}, for tables that are printed without answers.

    Draws are standardised and uncorrelated, so the standard error of a sum is exact. A value whose error is NaN has NaN for draws.
    """
    cells = [(name, algorithm) for name, of_set in values.items() for algorithm in of_set]
    raw = np.random.default_rng(SEED).standard_normal((RESAMPLES, len(cells)))
    unit, _ = np.linalg.qr(raw - raw.mean(0))
    whole: dict[str, dict[str, np.ndarray]] = {name: {} for name in values}
    for (name, algorithm), column in zip(cells, unit.T * np.sqrt(RESAMPLES), strict=True):
        score, error = values[name][algorithm]
        whole[name][algorithm] = np.concatenate([[score], score + error * column])
    return {name: Sampled(draws, dict.fromkeys(draws, 0), 0, {}, dict.fromkeys(draws, 0.0), normal=True) for name, draws in whole.items()}


def mcnemar(treated: np.ndarray, control: np.ndarray) -> float:
    """z of the images alone, from contributions [images] of each: (b - c) / sqrt(b + c) of discordant images where each has one seed.

    Means over seeds take the place of answers where there are several. NaN where all images agree. Source: McNemar (1947).
    """
    difference = treated - control
    length = np.sqrt((difference**2).sum())
    return float(difference.sum() / length) if length > 0 else float("nan")


def _mean(values: np.ndarray) -> Statistic:
    """Of what images contribute, [seeds, images]."""
    return lambda counts: counts @ values.T / counts.sum(1, keepdims=True)


def _stream(name: str, kind: int) -> np.random.Generator:
    """Draws of the images of one kind, of the set with this name."""
    return np.random.default_rng([SEED, zlib.crc32(name.encode()), *([2, kind] if kind else [])])


def _seeds(algorithm: str, seeds: int) -> np.ndarray:
    """[RESAMPLES, seeds]: the same on all sets, of which a seed is good or bad at once."""
    return np.random.default_rng([SEED, zlib.crc32(algorithm.encode()), 1]).integers(0, seeds, (RESAMPLES, seeds))


def _counts(rng: np.random.Generator, resamples: int, images: int) -> np.ndarray:
    """[resamples, images]: how often each image is drawn."""
    drawn = rng.integers(0, images, (resamples, images)) + images * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * images).reshape(resamples, images).astype(float)
