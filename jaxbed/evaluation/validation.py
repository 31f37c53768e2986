"""Accuracy, or pr_auc_weighted of multi-label sets, on the validation images while a run trains: for people who watch.

Epochs are selected by stored answers, later.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxbed import parallel
from jaxbed.config import Train
from jaxbed.evaluation import multi_label, pools
from jaxbed.method import Method
from jaxbed.training.members import GridPoint, seeds_of_point

PyTree = Any


class Validation:
    """Answers the validation sets of a run for all members; nothing is compiled before the first epoch has ended."""

    def __init__(self, cfg: Train, points: list[GridPoint], method: Method, seeds: parallel.Seeds):
        self._points, self._seeds = points, seeds_of_point(cfg, seeds)
        self._sets = [{name: one for name, one in point.source.sets.items() if one.role == "val"} for point in points]
        self._pools: dict[int, list[pools.Pool]] = {}
        for point, sets in zip(points, self._sets, strict=True):
            if sets and id(point.source) not in self._pools:
                self._pools[id(point.source)] = pools.pool(method.predict, self._seeds, point.source, sets, cfg.eval.batch_size)

    def answers(self, weights: Mapping[str, PyTree]) -> list[list[list[jax.Array]]]:
        """What all members answer, [points][pools][blocks] of [S, steps, B]: asked for, and not waited for. weights: params and stats.

        In multi-label sets, the scores [S, steps, B, classes].
        """
        given, size = [], self._seeds.size
        for i, point in enumerate(self._points):
            params, stats = (weights[kind] for kind in ("params", "stats"))
            if len(self._points) > 1:
                params, stats = self._seeds.place(jax.tree.map(lambda x, i=i: x[i * size : (i + 1) * size], (params, stats)), "seed")
            of_point = self._pools.get(id(point.source), [])
            kind = "scores" if point.source.multi_label else "response"
            given.append([[pool.answers(params, stats, block)[kind] for block in pool.blocks()] for pool in of_point])
        return given

    def accuracies(self, answers: list[list[list[jax.Array]]]) -> dict[str, np.ndarray]:
        """{"val": [S], "val/conflicting": [S]}: accuracy, and that on images whose bias votes for another class, where there are any.

        Of multi-label sets, {"val/pr_auc_weighted": [S]}. The sets have their own names; {} without validation images.
        """
        of_points = []
        for point, sets, of_pools in zip(self._points, self._sets, answers, strict=True):
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
            of_points.append(accuracies)
        shared = [name for name in of_points[0] if all(name in each for each in of_points)]
        return {name: np.concatenate([each[name] for each in of_points]) for name in shared}
