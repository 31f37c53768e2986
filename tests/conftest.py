"""Settings of the whole suite: eight CPU devices, a compilation cache between runs, little optimisation of throw-away programs."""

import functools
import gc
import importlib.metadata
import os
import pathlib
import platform
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # small tables: more threads only cost time
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # other versions may not know them, and would stop; compiles a third faster
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] += " --xla_llvm_disable_expensive_passes=true"
    if platform.machine() == "x86_64":  # fewer instructions compile faster, and are those of every machine; one that is asked for wins
        os.environ["XLA_FLAGS"] = "--xla_cpu_max_isa=SSE4_2 " + os.environ["XLA_FLAGS"]

import jax
import numpy as np
import pytest

from jaxbed.data import shapes
from jaxbed.data.split import Split

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `configs`, which is not part of the package

gc.set_threshold(100_000, 50, 50)  # tracing makes many objects, few of them in cycles
jax.config.update("jax_traceback_in_locations_limit", 0)
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".pytest_cache" / "xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


@pytest.fixture(scope="module", autouse=True)
def what_lives_on_is_not_collected_again():
    """Cached programs are millions of objects: to go through them for every few new ones took a tenth of the suite's time."""
    yield
    gc.collect()
    gc.freeze()


FIRST = ("test_processes.py", "test_torture.py", "test_tutorial.py", "test_sweep.py", "test_resume.py", "test_main.py", "test_methods.py")


def pytest_collection_modifyitems(items):
    """The longest files come first, so that processes that share the files end together."""
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


draw = shapes.draw


@functools.lru_cache(maxsize=32)
def drawn(side_px: int, counts: tuple[tuple[str, int], ...], texture_correlation: float, seed: int) -> dict[str, Split]:
    """As shapes.draw; nothing can be written to what tests share."""
    splits = draw(side_px, dict(counts), texture_correlation, seed)
    for array in (array for split in splits.values() for array in split if isinstance(array, np.ndarray)):
        array.setflags(write=False)
    return splits


@pytest.fixture(scope="module", autouse=True)
def shapes_are_drawn_once(request):
    """However many configurations open the same images; but for the tests of drawing."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_shapes.py":
            patch.setattr(shapes, "draw", lambda side_px, counts, *rest: dict(drawn(side_px, tuple(counts.items()), *rest)))
        yield


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Real data kept beside the checkout; tests that need it are skipped where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")
    return folder
