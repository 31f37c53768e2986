"""Corruptions on the processor, in many processes: `python -m peers.pool SETTINGS` (JSON), then lines `STEPS CORRUPTION` on stdin.

A step is one image for each process. Settings: package (imagecorruptions, or peers.numpy_cbar), severity, processes, side_px. Answers each
line as `process.Workers` says. The package may need an environment of its own: see --peer-python.
"""

import functools
import importlib
import json
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable

import numpy as np

from peers.images import smooth


@functools.cache
def images(side_px: int) -> np.ndarray:
    return smooth(8, side_px)


def change(package: str, corruption: str, severity: int) -> Callable[[np.ndarray], np.ndarray]:
    """uint8 [H, W, 3] -> the same."""
    module = importlib.import_module(package)
    if package == "imagecorruptions":
        return lambda image: module.corrupt(image, severity=severity, corruption_name=corruption)
    return lambda image: module.corrupt(image, corruption, severity, np.random)


def work(settings: dict, corruption: str, count: int) -> float:
    """Changes so many images; returns the mean of the last one."""
    changed = change(settings["package"], corruption, settings["severity"])
    every = images(settings["side_px"])
    return float(np.mean([changed(every[number % len(every)]) for number in range(count)][-1]))


def main() -> None:
    settings = json.loads(sys.argv[1])
    with multiprocessing.get_context("spawn").Pool(settings["processes"]) as pool:
        for line in sys.stdin:
            count, corruption = line.split()
            means = pool.map(functools.partial(work, settings, corruption), [int(count)] * settings["processes"], chunksize=1)
            memory = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            print("bench " + json.dumps({"loss": means[0], "peak_memory_bytes": memory}), flush=True)


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = "1"  # each process is one thread
    main()
