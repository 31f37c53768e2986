"""How sets go through a network together: one pass over the images of several sets, compiled once for all of one shape."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import parallel
from jaxbed.data import stream
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.evaluation import decision_rules

PyTree = Any
STEPS = 4  # batches of a block of streamed images
LARGEST_SCORE = 65504.0  # float16 has no larger number


class Pool(NamedTuple):
    """Sets that go through the network together: one image shape, one decision, batches that run across set borders."""

    names: list[str]
    sizes: list[int]
    blocks: Callable[[], Iterable[jax.Array]]  # each [steps, B, H, W, C] uint8; the last batch is filled up, which is never counted
    # (params, stats, block) -> {"response": [S, steps, B] int32, what else there is of answers.SCORES, [S, steps, B] float32, and, where
    # they are kept, "scores": the logits, [S, steps, B, classes] float32}
    answers: Callable
    streamed: bool
    scored: bool  # whether scores are kept


def pool(
    predict: Callable, seeds: parallel.Seeds, source: Source, sets: dict[str, EvaluationSet], batch_size: int, keep_scores: bool = False
) -> list[Pool]:
    """Everything that answers the sets; predict is a method's. keep_scores: also the logits, as always in multi-label sets."""
    scored = keep_scores or source.multi_label
    groups: dict[tuple, list[str]] = {}
    for name, (split, _, decision, *_, anomaly) in sets.items():
        groups.setdefault((split.image.shape[1:], decision, isinstance(split.image, stream.Images), anomaly is not None), []).append(name)
    pools = []
    for (_, decision, streamed, anomalies), names in groups.items():
        sizes = [len(sets[name].split.label) for name in names]
        read = blocks(seeds, [strict(sets[name].split.image) for name in names], batch_size)
        answers = _answers(predict, source, decision_rules.named(decision), anomalies, scored)
        pools.append(Pool(names, sizes, read, seeds.over(answers, shared=(2,)), streamed, scored))
    return pools


def blocks(seeds: parallel.Seeds, images: list[np.ndarray | stream.Images], batch_size: int) -> Callable[[], Iterable[jax.Array]]:
    """All images of one shape in blocks [steps, B, H, W, C] uint8: read for each call where they are streamed, else on the devices."""
    batch = -(-min(batch_size, sum(map(len, images))) // seeds.columns) * seeds.columns  # a multiple of the devices that share it
    streamed = [each for each in images if isinstance(each, stream.Images)]
    if streamed:
        return functools.partial(_read, seeds, stream.join(streamed), batch)
    arrays = [each for each in images if isinstance(each, np.ndarray)]
    steps = -(-sum(len(array) for array in arrays) // batch)
    more = np.arange(steps * batch - sum(len(array) for array in arrays)) % len(arrays[0])
    whole = np.concatenate([*arrays, arrays[0][more]]).reshape(steps, batch, *arrays[0].shape[1:])
    return functools.partial(list, [seeds.place(whole, None, "data")])


def _read(seeds: parallel.Seeds, images: stream.Images, batch: int) -> Iterator[jax.Array]:
    """All images in blocks of STEPS batches, read ahead; the last block is filled up with repetitions."""
    size = STEPS * batch
    count, cut = -(-len(images) // size), seeds.here(batch)[1]
    shape, start = (STEPS, batch, *images.shape[1:]), (0, cut.start, *[0] * len(images.shape[1:]))

    def rows_of(block: int) -> np.ndarray:
        rows = np.arange(block * size, (block + 1) * size) % len(images)
        return rows.reshape(STEPS, batch)[:, cut].ravel()

    parts = (pixels.reshape(STEPS, -1, *images.shape[1:]) for pixels, _ in stream.batches(images, rows_of, 0, count))
    yield from stream.ahead((seeds.place_part(part, shape, start, None, "data") for part in parts), 1)


def _answers(predict: Callable, source: Source, rule: decision_rules.Rule, anomalies: bool, scored: bool = False) -> Callable:
    def answers(params: PyTree, stats: PyTree, images: jax.Array) -> dict[str, jax.Array]:
        """Of one seed: images [steps, B, H, W, C] -> [steps, B] each, scores [steps, B, classes]."""

        def one(batch: jax.Array) -> dict[str, jax.Array]:
            logits = predict(params, stats, source.scale(batch))
            finite = jnp.isfinite(logits).all(-1)
            given = {"response": jnp.where(finite, rule.decide(logits), -1)}
            if scored:
                kept = jnp.clip(logits.astype(jnp.float32), -LARGEST_SCORE, LARGEST_SCORE)
                given["scores"] = jnp.where(finite[:, None], kept, jnp.nan)
            if rule.among and not source.multi_label:  # there, no class excludes another
                among = jnp.where(finite[:, None], rule.among(logits).astype(jnp.float32), jnp.nan)
                given["confidence"] = jax.nn.softmax(among).max(-1)
                if anomalies:
                    given["energy"] = -jax.nn.logsumexp(among, -1)
            return given

        return jax.lax.map(one, images)

    return answers


def halved(scores: np.ndarray) -> np.ndarray:
    """Scores as they are kept, in 16 bits; on the host, since old processors cannot convert them."""
    return scores.astype(np.float16)


def strict(images: np.ndarray | stream.Images) -> np.ndarray | stream.Images:
    """No image may be answered for another."""
    return dataclasses.replace(images, corrupt="fail") if isinstance(images, stream.Images) else images
