"""Seeds and devices: the only file that knows how many there are of either.

The mesh has two axes. `seed` is manual (`shard_map`): each row of devices holds its own seeds and nothing crosses rows. `data` is
left to the compiler: a row's devices share each batch, and means and BatchNorms are over the whole of it, so that results do not
depend on how many devices ran them.
"""

import collections
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxbed.system import cache, memory, processes
from jaxbed.values import Whole

PyTree = Any
MOST_CPU_DEVICES = 12
UNDER_WAY = 2  # results that are computed or copied while another is awaited


@dataclasses.dataclass
class Mesh:
    """How seeds are laid over devices. 0 means: choose."""

    seed: Whole = 0  # rows; default: the greatest common divisor of seeds and devices
    data: Whole = 0  # devices per row; default: as many of the others as divide the batch
    # how one device runs its seeds: vmap is fastest, map is one after another; auto: map where vmap needs too much memory
    within: Literal["auto", "vmap", "map"] = "auto"
    steps_per_call: Whole = 0  # training steps per dispatch; default: see `program.steps_per_call`


class Seeds:
    """Seeds from `first` on, as many of each variant, laid over the devices of a mesh. `size` counts them all.

    What the mesh leaves open is chosen so that the devices of a row can share a batch of `batch_size` images, where that is given.
    """

    def __init__(self, seeds: int, first: int, mesh: Mesh, variants: int = 1, batch_size: int = 0):
        size = seeds * variants
        devices = len(jax.devices())
        rows = mesh.seed or math.gcd(size, devices if not mesh.data else max(devices // mesh.data, 1))
        columns = mesh.data or next(n for n in range(max(devices // rows, 1), 0, -1) if batch_size % n == 0)
        if rows * columns > devices:
            raise ValueError(f"mesh.seed x mesh.data = {rows} x {columns} needs {rows * columns} devices and there are {devices}")
        if size % rows:
            raise ValueError(f"seeds = {size} cannot be split over mesh.seed = {rows} rows of devices: take a divisor")
        self.size, self.rows, self.columns = size, rows, columns
        self.within = mesh.within
        self.mesh = _lay(rows, columns)
        self.numbers = np.tile(np.arange(first, first + seeds, dtype=np.int32), variants)
        self.array = self.place(self.numbers, "seed")

    def described(self) -> str:
        """How seeds and batches are laid over devices and processes, in words."""
        spread = max(len({device.process_index for device in row}) for row in self.mesh.devices)
        shared = f"each on {self.columns} devices that share its batches" if self.columns > 1 else "each on one device"
        within = f", of {spread} processes" if spread > 1 else ""
        return f"{self.size} seeds in {self.rows} parts, {shared}{within}"

    def sharding(self, *axes: str | None) -> NamedSharding:
        """The placement of an array whose leading axes are `axes` ("seed", "data" or None); without axes, a copy on each device."""
        return NamedSharding(self.mesh, P(*axes))

    def place(self, tree: PyTree, *axes: str | None) -> PyTree:
        """The arrays of a tree, which every process has whole, on the devices."""
        sharding = self.sharding(*axes)
        if processes.count() == 1:
            return jax.device_put(tree, sharding)
        return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, sharding, x.__getitem__), gather(tree))

    def place_part(self, part: np.ndarray, shape: tuple[int, ...], start: tuple[int, ...], *axes: str | None) -> jax.Array:
        """An array of which this process has only the part that its devices need, from the index `start` on."""
        sharding = self.sharding(*axes)
        if processes.count() == 1:
            return jax.device_put(part, sharding)

        def of_device(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            bounds = (cut.indices(size)[:2] for cut, size in zip(index, shape, strict=True))
            return part[tuple(slice(first - offset, last - offset) for (first, last), offset in zip(bounds, start, strict=True))]

        return jax.make_array_from_callback(shape, sharding, of_device)

    def here(self, batch_size: int) -> tuple[slice, slice]:
        """Which seeds, and which images of a batch, the devices of this process need."""
        rows, columns = np.nonzero(np.vectorize(lambda device: device.process_index == processes.index())(self.mesh.devices))
        cuts = []
        for cells, parts, size in ((rows, self.rows, self.size), (columns, self.columns, batch_size)):
            cuts.append(slice(cells.min() * size // parts, (cells.max() + 1) * size // parts))
        return cuts[0], cuts[1]

    def like(self, array: Any, *axes: str | None) -> jax.ShapeDtypeStruct:
        """What `place` would make of an array: its shape, type and placement."""
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=self.sharding(*axes))

    def check_batch(self, batch_size: int) -> None:
        if batch_size % self.columns:
            raise ValueError(
                f"batch_size = {batch_size} cannot be split over the {self.columns} devices that share a batch: "
                f"take a multiple of {self.columns}, or set mesh.data to a divisor"
            )

    def check_memory(self, tree: PyTree, what: str) -> None:
        """Raises ValueError where the arrays of a tree, stacked over seeds, cannot lie on the devices."""
        size, free = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree)), free_bytes()
        memory.check(*((size, memory.total()) if free is None else (size // self.rows, free)), what)

    def over(self, function: Callable, shared: tuple[int, ...] = (), donate: tuple[int, ...] = (), once: bool = False) -> "ForAllSeeds":
        """`function`, written for one seed, for all of them at once, compiled.

        Every argument and result has a leading seed axis [S, ...], but for the arguments numbered in `shared`, which all seeds
        see whole. Arguments numbered in `donate` are overwritten. `once`: it will run once, so compile it fast rather than well.
        """

        def local(within: str, *args: PyTree) -> PyTree:
            seeded = [argument for i, argument in enumerate(args) if i not in shared]

            def one(of_seed: list[PyTree]) -> PyTree:
                rest = iter(of_seed)
                return function(*(argument if i in shared else next(rest) for i, argument in enumerate(args)))

            return jax.vmap(one)(seeded) if within == "vmap" else jax.lax.map(one, seeded)

        def run(within: str, *args: PyTree) -> PyTree:
            # No value here is the same for all rows and differentiated, so that nothing would have to be summed over `seed`:
            # the check of replication, which custom batching rules do not support, has nothing to find.
            specs = tuple(P() if i in shared else P("seed") for i in range(len(args)))
            share = functools.partial(local, within)
            mapped = jax.shard_map(share, mesh=self.mesh, in_specs=specs, out_specs=P("seed"), axis_names={"seed"}, check_vma=False)
            return mapped(*args)

        options = {"xla_backend_optimization_level": 0} if once else None
        compiled = jax.jit(run, static_argnums=0, donate_argnums=tuple(i + 1 for i in donate), compiler_options=options)
        return ForAllSeeds(self, compiled)

    def how(self, compiled: Any, args: tuple) -> str:
        """How one device runs its seeds. Throughput never speaks for `map`, but activations of all seeds may not fit."""
        if self.within != "auto":
            return self.within
        free = free_bytes()
        if self.size == self.rows or free is None:
            return "vmap"
        needed = compiled.lower("vmap", *args).compile().memory_analysis()
        return "vmap" if needed.temp_size_in_bytes + needed.output_size_in_bytes - needed.alias_size_in_bytes <= free else "map"


class ForAllSeeds:
    """A function of one seed for all of them. How each device runs its seeds is decided at the first call."""

    def __init__(self, seeds: Seeds, compiled: Any):
        self._seeds, self._compiled, self._how = seeds, compiled, ""

    def __call__(self, *args: PyTree) -> PyTree:
        processes.passes()
        with jax.set_mesh(self._seeds.mesh):
            self._how = self._how or self._seeds.how(self._compiled, args)
            return self._compiled(self._how, *args)

    def abstract(self, *args: PyTree) -> PyTree:
        """Shapes and types of the results [S, ...], with the placement they will have. The call that follows does not trace again."""
        with jax.set_mesh(self._seeds.mesh):
            shapes = self._compiled.eval_shape("map" if self._seeds.within == "map" else "vmap", *args)
        return jax.tree.map(lambda x: self._seeds.like(x, "seed"), shapes)

    def lower(self, *args: PyTree, platforms: tuple[str, ...] | None = None) -> Any:
        """The same call, lowered and not run: for this machine's devices, or for those of other platforms, such as "tpu"."""
        with jax.set_mesh(self._seeds.mesh):
            traced = self._compiled.trace("map" if self._seeds.within == "map" else "vmap", *args)
            return traced.lower(lowering_platforms=platforms)


def on_own_images(function: Callable, axes: tuple[int | None, ...]) -> Callable:
    """`function`, within a program of `Seeds.over`, with each device of a row at work on its own part of the images.

    What it makes of an image must not depend on others. `axes` of an argument: the axis of its arrays that counts images, or None. That of
    the result is 0. Images need not be as many as a multiple of the devices. For what the compiler cannot divide by itself.
    """

    def divided(*args: PyTree) -> PyTree:
        devices = jax.sharding.get_abstract_mesh().shape.get("data", 1)
        if devices == 1:
            return function(*args)
        size = next(jax.tree.leaves(argument)[0].shape[axis] for argument, axis in zip(args, axes, strict=True) if axis is not None)
        rows = np.arange(math.ceil(size / devices) * devices) % size  # some images again, where they are not a multiple
        filled = [
            argument if axis is None or len(rows) == size else jax.tree.map(lambda x, axis=axis: jnp.take(x, rows, axis), argument)
            for argument, axis in zip(args, axes, strict=True)
        ]
        specs = tuple(P() if axis is None else P(*[None] * axis, "data") for axis in axes)
        mapped = jax.shard_map(function, in_specs=specs, out_specs=P("data"), axis_names={"data"}, check_vma=False)
        return jax.tree.map(lambda x: x[:size], mapped(*filled))

    return divided


def _lay(rows: int, columns: int) -> jax.sharding.Mesh:
    """The mesh. Of several processes, the devices of a row are those of one process as far as they go: nothing crosses rows.

    Raises ValueError where a process would have nothing to do.
    """
    axes, types = ("seed", "data"), (AxisType.Auto,) * 2
    if processes.count() == 1:
        return jax.make_mesh((rows, columns), axes, axis_types=types, devices=jax.devices()[: rows * columns])
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))[: rows * columns]
    if idle := sorted(set(range(processes.count())) - {device.process_index for device in devices}):
        raise ValueError(
            f"{rows} rows of seeds x {columns} devices that share a batch leave {processes.names()[idle[0]]} without work: start fewer "
            "processes, or take more seeds, another batch_size or another mesh"
        )
    return jax.sharding.Mesh(np.array(devices).reshape(rows, columns), axes, axis_types=types)


def gather(tree: PyTree) -> PyTree:
    """The arrays of a tree whole, in the memory of every process."""
    if processes.count() == 1:
        return jax.device_get(tree)

    def whole(x: Any) -> np.ndarray:
        local = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        return np.asarray(x) if local else multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(whole, tree)


def fetched(computed: Iterable[tuple[Any, jax.Array]]) -> Iterator[tuple[Any, np.ndarray]]:
    """The same pairs with their arrays on the host, in order; up to UNDER_WAY more are computed and copied while one is awaited."""
    waiting: collections.deque[tuple[Any, jax.Array]] = collections.deque()
    for of_array, array in computed:
        waiting.append((of_array, to_host(array)))
        if len(waiting) > UNDER_WAY:
            first, ready = waiting.popleft()
            yield first, np.asarray(ready)
    for of_array, array in waiting:
        yield of_array, np.asarray(array)


def to_host(array: jax.Array) -> jax.Array:
    """The same array, which a GPU copies to memory of the host that it can write itself; np.asarray waits for it.

    Into other memory a GPU copies more slowly, and the host waits from the start.
    """
    return jax.device_put(array, array.sharding.with_memory_kind("pinned_host")) if jax.default_backend() == "gpu" else array


def free_bytes() -> int | None:
    """Memory that is left on the fullest device of all; None where the backend does not count (CPU)."""
    counts = [device.memory_stats() for device in jax.local_devices()]
    free = min(c["bytes_limit"] - c["bytes_in_use"] for c in counts) if all(counts) else None
    of_all = processes.gather(free, "memory")
    return min((each for each in of_all if each is not None), default=None)


def fitting(mesh: Mesh) -> Mesh:
    """The mesh, or where it needs more devices than there are one that is chosen: of another machine's run, to evaluate it here."""
    fits = max(mesh.seed, 1) * max(mesh.data, 1) <= len(jax.devices())
    return mesh if fits else dataclasses.replace(mesh, seed=0, data=0)


def keep_compilations() -> None:
    """Keeps compiled programs in the user's cache folder, so that a second run starts at once. JAX_COMPILATION_CACHE_DIR overrides."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]  # JAX defines it at run time
        jax.config.update("jax_compilation_cache_dir", str(cache.folder() / "compiled"))


def use_cores(seeds: int, mesh: Mesh) -> None:
    """On the CPU, gives every seed a device of its own: within one, XLA leaves much of the cores idle.

    Three seeds on two cores train 1.3 times as fast (`scripts/bench.py array --nets demo_32`). To be called before anything else touches a
    device. Nothing happens where the user chose a mesh or a number of devices.
    """
    chosen = jax.config.jax_num_cpu_devices > 0 or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")  # type: ignore[attr-defined]  # JAX defines it at run time
    if not chosen and not mesh.seed and not mesh.data:
        jax.config.update("jax_num_cpu_devices", cpu_devices(seeds, processes.count()))


def cpu_devices(seeds: int, of_processes: int = 1) -> int:
    """Devices of each process, together a divisor of `seeds`, and at most MOST_CPU_DEVICES: each has a copy of the data set."""
    return next((n for n in range(min(seeds, MOST_CPU_DEVICES), 0, -1) if seeds % (n * of_processes) == 0), 1)


def finite(tree: PyTree) -> jax.Array:
    """Whether every number of a tree is finite: a boolean scalar."""
    leaves = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.stack(leaves).all()
