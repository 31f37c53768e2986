"""How commands of this folder train a network: they save its state from time to time and when they are stopped, and resume from it."""

import argparse
import contextlib
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from jaxbed.system import files

PyTree = Any
REPORTS = 20  # of one training; each is followed by a save
SAVE_S = 600.0  # between saves, at most
WAITING = 1_000  # losses on the device, at most


def output(text: str) -> pathlib.Path:
    """OUT of a command. Its readers tell the form of a file by its ending."""
    path = pathlib.Path(text)
    if path.suffix != ".safetensors":
        raise argparse.ArgumentTypeError(f"{text!r} must end in .safetensors, else it cannot be read back: name {text}.safetensors, say")
    return path


def write(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as file:
        file.write(safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def tell(path: pathlib.Path) -> None:
    print(f"written: {path}, {path.stat().st_size / 2**20:.1f} MiB")


def fit(
    asked: argparse.Namespace,
    state: PyTree,
    step: Callable[..., tuple[PyTree, jax.Array]],
    batches: Callable[[int], Iterator[tuple]],
    weights: Callable[[PyTree], dict[str, np.ndarray]],
    words: Callable[[np.ndarray], str],
) -> None:
    """Trains from where an earlier call stopped, or from `state` on: asked.steps times state, losses = step(state, *batch).

    batches(n) begins with the batch of step n. asked.out gets weights(state), and OUT.state.npz next to it the state, until training is
    complete. words(mean losses) are printed. Raises ValueError for other settings than before, and for a loss that is not finite.
    """
    state_path = asked.out.with_name(f"{asked.out.name}.state.npz")
    settings = json.dumps({key: value for key, value in vars(asked).items() if key != "out"}, sort_keys=True)
    point = jax.device_put(state), 0  # state and steps done, in one name: an interruption cannot part them
    if state_path.is_file():
        point = resumed(state_path, point[0], settings)
        print(f"resumed after step {point[1]:,}", flush=True)
    elif asked.out.exists():
        raise ValueError(f"{asked.out} exists, and no training of it is unfinished: delete it, or name another file")
    waiting: list[jax.Array] = []
    total, counted = np.zeros(2), 0  # of losses since the last report
    begun = saved = time.monotonic()

    def fetch() -> None:
        nonlocal total, counted
        total, counted = total + np.sum(jax.device_get(waiting), axis=0, dtype=float), counted + len(waiting)
        waiting.clear()
        if not np.isfinite(total).all():
            raise ValueError(f"the loss is no longer finite: lower --lr (now {asked.lr})")

    def save() -> None:
        nonlocal saved
        fetch()
        state, done = jax.device_get(point)
        leaves = {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(state))}
        write(asked.out, weights(state))
        files.write_arrays(state_path, {"settings": np.array(settings), "done": np.array(done), **leaves}, compressed=False)
        saved = time.monotonic()

    try:
        for batch in itertools.islice(batches(point[1]), asked.steps - point[1]):
            state, losses = step(point[0], *batch)
            point = state, point[1] + 1
            waiting.append(losses)
            if point[1] % max(asked.steps // REPORTS, 1) == 0 or point[1] == asked.steps:
                fetch()
                seconds = time.monotonic() - begun
                print(f"step {point[1]:,} of {asked.steps:,}: {words(total / counted)}, {seconds:.0f} s", flush=True)
                total, counted = np.zeros(2), 0
                save()
            elif time.monotonic() - saved > SAVE_S:
                save()
            elif len(waiting) == WAITING:
                fetch()
    except (KeyboardInterrupt, SystemExit):  # the latter after SIGTERM
        with contextlib.suppress(ValueError):  # what has diverged is not kept
            save()
        raise
    state_path.unlink(missing_ok=True)
    tell(asked.out)


def resumed(path: pathlib.Path, state: PyTree, settings: str) -> tuple[PyTree, int]:
    """(state, steps done) of an unfinished training. Raises ValueError for one with other settings, and for a damaged file."""
    cure = "delete it to begin again, or name another output"
    arrays = files.read_arrays(path, cure)
    with files.guarded(path, cure):
        before, now = json.loads(str(arrays["settings"])), json.loads(settings)
    if changed := [f"{key} = {before.get(key)}, not {value}" for key, value in now.items() if before.get(key) != value]:
        raise ValueError(f"{path} is of a training with {changed[0]}: use the same settings, {cure}")
    with files.guarded(path, cure):
        leaves, form = jax.tree.flatten(state)
        read = [arrays[str(number)] for number in range(len(leaves))]
        if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in read]:
            raise files.Fault("its arrays are of another network")
        return jax.device_put(jax.tree.unflatten(form, read)), int(arrays["done"])
