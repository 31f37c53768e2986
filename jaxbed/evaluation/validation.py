"""Accuracy, or pr_auc_weighted of multi-label sets, on the validation images while a run trains: for people who watch.

Epochs are selected by stored answers, later.

Of a method that attacks images, also accuracy on some of these images under attack. Where it falls within one epoch, that is reported.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import parallel
from jaxbed.config import Train
from jaxbed.data.source import Source
from jaxbed.evaluation import multi_label, pools
from jaxbed.method import Method
from jaxbed.training.members import GridPoint, seeds_of_point

PyTree = Any
ATTACKED = 256  # validation images under attack, at most
FALL = 0.2  # of accuracy on them, within an epoch: Wong et al. (2020) stop there


class Watched(NamedTuple):
    """Images of one validation set that are attacked."""

    name: str
    image: jax.Array  # [n, H, W, C] uint8
    label: jax.Array  # [n]
    right: Callable  # (params, stats, image, label) -> [S, n] bool


class Answers(NamedTuple):
    """What all members answer to the validation images of one grid point."""

    plain: list[list[jax.Array]]  # [pools][blocks] of [S, steps, B], in multi-label sets the scores [S, steps, B, classes]
    attacked: list[jax.Array]  # of each set that is watched: [S, n] bool, whether it is right


class Validation:
    """Answers the validation sets of a run for all members; nothing is compiled before the first epoch has ended."""

    def __init__(self, cfg: Train, points: list[GridPoint], method: Method, seeds: parallel.Seeds, say: Callable[[str], None] = print):
        self._points, self._seeds, self._say = points, seeds_of_point(cfg, seeds), say
        self._sets = [{name: one for name, one in point.source.sets.items() if one.role == "val"} for point in points]
        self._pools: dict[int, list[pools.Pool]] = {}
        self._watched: dict[int, list[Watched]] = {}
        self._former: dict[tuple[str, str], np.ndarray] = {}  # (grid point, set): [S], accuracy under attack after the last epoch
        for point, sets in zip(points, self._sets, strict=True):
            if sets and id(point.source) not in self._pools:
                self._pools[id(point.source)] = pools.pool(method.predict, self._seeds, point.source, sets, cfg.eval.batch_size)
                self._watched[id(point.source)] = self._watch(method, point.source, list(sets)) if method.attacked else []

    def _watch(self, method: Method, source: Source, sets: list[str]) -> list[Watched]:
        def right(params: PyTree, stats: PyTree, image: jax.Array, label: jax.Array) -> jax.Array:  # one seed: [n]
            assert method.attacked
            logits = method.predict(params, stats, method.attacked(params, stats, source.scale(image), label))
            return jnp.argmax(logits, -1) == label

        watched, of_seeds = [], self._seeds.over(right, shared=(2, 3))
        for name in sets:
            split = source.sets[name].split
            rows = np.unique(np.linspace(0, len(split.label) - 1, min(ATTACKED, len(split.label))).astype(int))
            image = split.image[rows] if isinstance(split.image, np.ndarray) else pools.strict(split.image).take(rows)[0]
            watched.append(Watched(name, self._seeds.place(image), self._seeds.place(split.label[rows]), of_seeds))
        return watched

    def answers(self, weights: Mapping[str, PyTree]) -> list[Answers]:
        """What all members answer, of each grid point: asked for, and not waited for. weights: params and stats."""
        given, size = [], self._seeds.size
        for i, point in enumerate(self._points):
            params, stats = (weights[kind] for kind in ("params", "stats"))
            if len(self._points) > 1:
                params, stats = self._seeds.place(jax.tree.map(lambda x, i=i: x[i * size : (i + 1) * size], (params, stats)), "seed")
            of_point = self._pools.get(id(point.source), [])
            kind = "scores" if point.source.multi_label else "response"
            plain = [[pool.answers(params, stats, block)[kind] for block in pool.blocks()] for pool in of_point]
            watched = self._watched.get(id(point.source), [])
            given.append(Answers(plain, [each.right(params, stats, each.image, each.label) for each in watched]))
        return given

    def accuracies(self, answers: list[Answers]) -> dict[str, np.ndarray]:
        """{"val": [S], "val/conflicting": [S], "val/attacked": [S]}: accuracy, and that on images whose bias votes for another class, and
        on images under attack, where there are any.

        Of multi-label sets, {"val/pr_auc_weighted": [S]}. The sets have their own names; {} without validation images.
        """
        of_points = []
        for point, sets, (of_pools, attacked) in zip(self._points, self._sets, answers, strict=True):
            accuracies: dict[str, np.ndarray] = {}
            for pool, blocks in zip(self._pools.get(id(point.source), []), of_pools, strict=True):
                joined = np.concatenate(parallel.gather(blocks), axis=1)
                flat = joined.reshape(self._seeds.size, -1, *joined.shape[3:])[:, : sum(pool.sizes)]
                for name, answer in zip(pool.names, np.split(flat, np.cumsum(pool.sizes)[:-1], axis=1), strict=True):
                    label, bias = sets[name].split.label, sets[name].split.bias
                    if sets[name].split.multi_label:
                        if label.any():
                            accuracies[f"{name}/pr_auc_weighted"] = multi_label.over_classes(
                                pools.halved(answer), label, multi_label.pr_auc
                            )
                        continue
                    correct, conflicting = answer == label, (bias >= 0) & (bias != label)
                    accuracies[name] = correct.mean(1)
                    if conflicting.any():
                        accuracies[f"{name}/conflicting"] = correct[:, conflicting].mean(1)
            for watched, right in zip(self._watched.get(id(point.source), []), attacked, strict=True):
                accuracies[f"{watched.name}/attacked"] = parallel.gather(right).mean(1)
                self._report(point.name, watched.name, accuracies[f"{watched.name}/attacked"])
            of_points.append(accuracies)
        shared = [name for name in of_points[0] if all(name in each for each in of_points)]
        return {name: np.concatenate([each[name] for each in of_points]) for name in shared}

    def _report(self, point: str, name: str, accuracy: np.ndarray) -> None:
        """Says of which seeds accuracy under attack fell."""
        former, self._former[point, name] = self._former.get((point, name)), accuracy
        if former is None:
            return
        for seed in np.flatnonzero(former - accuracy > FALL):
            member = f"seed {self._seeds.numbers[seed]}" + f" of {point}" * bool(point)
            self._say(
                f"{member}: accuracy on {name} under attack fell from {100 * former[seed]:.0f} to {100 * accuracy[seed]:.0f} % within an "
                "epoch. It may be catastrophic overfitting, after which the network resists a single step alone: lower method.step or "
                "method.epsilon, or take an earlier epoch"
            )
