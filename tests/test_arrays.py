"""A seed in an array is the seed alone, on every mesh; and what the compiler makes of it has no grouped convolution, no gathered kernel."""

import collections
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxbed import parallel
from jaxbed.models import mlp
from jaxbed.optim import Optim
from jaxbed.training import log, members, program, train

SEEDS = 4
# Style statistics of the tiny net's 2x2 maps divide by deviations near 0: rounding of the first update grows a thousandfold in the second.
STEPS = {"erm": 2, "lff": 2, "padain": 1, "sagnet": 1}
# The first update of Adam is the sign of the gradient: near 0, of a rounding error. With a large eps it is smooth.
SMOOTH = Optim(rule="adam", lr=1e-2, eps=1e-2)


def advanced(cfg, ready, steps):
    run, batches = train.start(cfg, ready), train.feeds_from(cfg, ready, 0)
    for _ in range(steps):
        run = ready.advance(run, ready.arrays, next(batches), ready.seeds.array)
    return jax.device_get(run)


def run_steps(cfg, steps=None):
    return advanced(cfg, tiny.program(cfg), steps or STEPS[cfg.name])


def config(method, seed, data, **changes):
    changes = {"seeds": SEEDS, "mesh": parallel.Mesh(seed=seed, data=data), **changes}
    if method in ("lff", "groupdro"):
        return tiny.mlp_config(method, net=mlp.Config(()), optim=SMOOTH, **changes)
    cfg = tiny.train_config(method, net=tiny.RESNET_4, **changes)
    if "sagnet" in method:  # the block is then in its heads
        cfg = dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, style_stage=2))
    return cfg


@functools.cache
def alone(method):
    """Each of the seeds, one at a time on one device, by one program."""
    cfg = config(method, 1, 1, seeds=1)
    ready = tiny.program(cfg)
    of_each = [dataclasses.replace(ready, seeds=parallel.Seeds(1, number, cfg.mesh)) for number in range(SEEDS)]
    runs = [advanced(cfg, one, STEPS[method]) for one in of_each]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *runs)


@pytest.mark.parametrize(
    ("method", "seed", "data"),
    [
        ("erm", 1, 1),
        ("lff", 2, 4),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("erm", 2, 2), ("lff", 1, 1), ("erm", 4, 2), ("erm", 1, 4), ("sagnet", 2, 2), ("padain", 4, 1))
        ),
    ],
)
def test_a_seed_in_an_array_is_the_seed_alone(method, seed, data):
    together = run_steps(config(method, seed, data))
    for (path, solo), array in zip(jax.tree_util.tree_leaves_with_path(alone(method)), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(array, solo, rtol=1e-3, atol=2e-5, err_msg=jax.tree_util.keystr(path))


def test_one_after_another_equals_all_at_once():
    mapped = run_steps(config("lff", 2, 1, mesh=parallel.Mesh(seed=2, data=1, within="map")))
    for solo, array in zip(jax.tree.leaves(alone("lff")), jax.tree.leaves(mapped), strict=True):
        np.testing.assert_allclose(array, solo, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("rows", "free", "expected"), [(1, None, "vmap"), (1, 2**20, "vmap"), (1, 2**10, "map"), (4, 2**10, "vmap")])
def test_seeds_run_one_after_another_only_where_memory_is_short(monkeypatch, rows, free, expected):
    monkeypatch.setattr(parallel, "free_bytes", lambda: free)
    seeds, traced = parallel.Seeds(SEEDS, 0, parallel.Mesh(rows, 1)), []

    def function(x):
        traced.append("vmap" if "Batch" in type(x).__name__ else "map")
        return jnp.sin(jnp.outer(x, x)) @ x  # 16 KiB between

    x = np.arange(SEEDS * 64, dtype=np.float32).reshape(SEEDS, 64)
    out = seeds.over(function)(seeds.place(x, "seed"))
    assert traced[-1] == expected
    np.testing.assert_allclose(out, [np.sin(np.outer(row, row)) @ row for row in x], rtol=1e-3, atol=1)


def test_many_steps_in_one_call_equal_single_ones():
    """Of a method that remembers something from step to step."""
    single = run_steps(config("groupdro", 1, 1), steps=4)
    joined = run_steps(config("groupdro", 1, 1, mesh=parallel.Mesh(seed=1, data=1, steps_per_call=4)), steps=1)
    assert (joined.state.step == 4).all() and jax.tree.leaves(joined.state.memory)
    for a, b in zip(jax.tree.leaves(single), jax.tree.leaves(joined), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_short_steps_share_a_call_and_long_ones_do_not(monkeypatch):
    large = tiny.DATA.open()
    image = np.broadcast_to(np.zeros((), np.uint8), (64, 224, 224, 3))
    wide = dataclasses.replace(large, train=large.train._replace(image=image))
    cfg = config("erm", 1, 1)
    assert program.steps_per_call(cfg, large) == 1  # CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert program.steps_per_call(cfg, large) == 256
    assert program.steps_per_call(dataclasses.replace(cfg, batch_size=256), wide) == 10
    assert program.steps_per_call(dataclasses.replace(cfg, batch_size=1024), wide, devices=4) == 10
    assert program.steps_per_call(config("erm", 1, 1, mesh=parallel.Mesh(steps_per_call=7)), wide) == 7


def test_shared_order_gives_all_seeds_the_batches_of_the_first():
    cfg = config("lff", 1, 1, shared_order=True)
    ready = tiny.program(cfg)
    shared, of_each = (np.asarray(next(train.feeds_from(each, ready, 0)).row) for each in (cfg, config("lff", 1, 1)))
    assert (shared == shared[:1]).all() and (of_each[0] == shared[0]).all() and (of_each[1] != shared[1]).any()


def lowered(method, seed, data, **changes):
    cfg = config(method, seed, data, **changes)
    ready = tiny.program(cfg)
    feed = next(train.feeds_from(cfg, ready, 0))
    return ready.advance.lower(ready.abstract, ready.arrays, feed, ready.seeds.array)


@pytest.mark.parametrize("method", ["erm", "padain", "sagnet", "sagnet_biasbed"])
def test_no_grouped_convolution_arises_from_seeds(method):
    text = lowered(method, 1, 1).as_text()
    assert text.count("stablehlo.convolution") > 20
    assert set(re.findall(r"(?:feature|batch)_group_count = (\d+)", text)) == {"1"}


@pytest.mark.parametrize(("seed", "data"), [(4, 1), (2, 2)])
def test_seeds_exchange_nothing_and_no_kernel_is_gathered(seed, data):
    text = lowered("erm", seed, data).compile().as_text()
    counts = collections.Counter(re.findall(r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", text))
    assert set(counts) <= ({"all-reduce"} if data > 1 else set()), counts
    if data > 1:  # within a row, never across rows
        groups = set(re.findall(r"replica_groups=(\S+?),? ", text))
        assert groups and all(g.startswith(("{{0,1},{2,3}}", "[2,2]<=[4]")) for g in groups), groups


@pytest.mark.parametrize(
    ("size", "mesh", "message"),
    [
        (3, parallel.Mesh(seed=2), "seeds = 3 cannot be split over mesh.seed = 2"),
        (4, parallel.Mesh(seed=4, data=4), "needs 16 devices and there are 8"),
    ],
)
def test_impossible_meshes_are_refused(size, mesh, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parallel.Seeds(size, 0, mesh)


def test_seeds_go_over_devices_first():
    for size, rows, columns in ((8, 8, 1), (3, 1, 8), (10, 2, 4), (16, 8, 1)):
        seeds = parallel.Seeds(size, 0, parallel.Mesh())
        assert (seeds.rows, seeds.columns) == (rows, columns)


def test_a_batch_that_devices_cannot_share_is_refused(tmp_path):
    cfg = config("groupdro", 1, 2, batch_size=15)
    with pytest.raises(ValueError, match="batch_size = 15 cannot be split over the 2 devices"):
        train.train(cfg, members.one(cfg, cfg.data.open()), tmp_path, log.Log(tmp_path))


def test_an_open_mesh_fits_the_batch():
    for batch_size, columns in ((16, 8), (15, 5), (7, 7), (11, 1)):
        assert parallel.Seeds(1, 0, parallel.Mesh(), batch_size=batch_size).columns == columns
