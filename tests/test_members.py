"""Variants: members of one array that are, each, the run they would be alone."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiny

from jaxbed import config, parallel
from jaxbed.evaluation import evaluate, metrics
from jaxbed.training import members, train
from jaxbed.training.log import Log

GRID = ("data.texture_correlation=0.95,0.25", "optim.lr=0.01,0.003")
NAMES = [f"texture_correlation={t},lr={lr}" for t in (0.95, 0.25) for lr in (0.01, 0.003)]


def finished(cfg, workdir):
    """Trains and evaluates; returns the last state, stacked over members."""
    opened, log = members.open_all(cfg), Log(workdir)
    assert train.train(cfg, opened, workdir, log) == 0
    assert evaluate.evaluate(cfg, opened, workdir, log) == 0
    resume, _ = train.stores(workdir, len(opened) * cfg.seeds, log)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    saved = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), resume._metadata(max(resume.numbers())))
    return jax.device_get(resume.latest(saved)[1])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """sweep(method) -> (configuration, workdir, last state) of all variants together."""

    @functools.cache
    def swept(method):
        mesh = parallel.Mesh(seed=4, data=1)  # more rows than a variant has seeds
        cfg = tiny.mlp_config(method, net=tiny.mlp.Config(()), grid=GRID, mesh=mesh)
        workdir = tmp_path_factory.mktemp(method)
        return cfg, workdir, finished(cfg, workdir)

    return swept


@pytest.mark.parametrize(("method", "variant"), [("erm", 1), ("erm", 2), ("lff", 0), ("lff", 3)])
def test_a_variant_is_the_run_it_would_be_alone(sweep, tmp_path, method, variant):
    """Each variant with one method; LfF's tables are of the training images. Its two differ in both the data and the learning rate."""
    cfg, workdir, run = sweep(method)
    alone = members.open_all(cfg)[variant].cfg
    settings = [(t, lr) for t in (0.95, 0.25) for lr in (0.01, 0.003)]
    assert alone.grid == () and (alone.data.texture_correlation, alone.optim.lr) == settings[variant]
    expected = finished(dataclasses.replace(alone, mesh=parallel.Mesh(seed=2, data=1)), tmp_path)
    rows = slice(variant * cfg.seeds, (variant + 1) * cfg.seeds)
    for (path, leaf), array in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(run), strict=True):
        np.testing.assert_allclose(array[rows], leaf, rtol=1e-3, atol=2e-5, err_msg=jax.tree_util.keystr(path))
    for path in sorted((tmp_path / "responses").rglob("*")):
        twin = workdir / NAMES[variant] / "responses" / path.relative_to(tmp_path / "responses")
        if path.suffix == ".npz":
            with np.load(path) as a, np.load(twin) as b:
                assert (a["response"] != b["response"]).mean() < 0.02  # rounding may turn a near tie
                assert (a["seeds"] == b["seeds"]).all()
        elif path.is_file():
            assert path.read_bytes() == twin.read_bytes()


@pytest.mark.parametrize("method", ["erm", "lff"])
def test_a_variants_folder_is_a_workdir_to_statistics(sweep, method):
    cfg, workdir, _ = sweep(method)
    names = set()
    for variant, name in enumerate(NAMES):
        frame = metrics.scores(workdir / name)
        assert set(frame["run"]) == {0, 1} and set(frame["epoch"]) == {1, 2}
        assert config.load(workdir / name) == members.open_all(cfg)[variant].cfg
        names.update(frame["algorithm"])
    assert names == {f"{cfg.name} lr=0.01", f"{cfg.name} lr=0.003"}  # the data do not change the algorithm's name


def test_data_sets_are_opened_once_and_the_first_row_says_which():
    cfg = tiny.mlp_config(grid=GRID)
    found = members.open_all(cfg)
    assert [v.name for v in found] == NAMES
    assert found[0].source is found[1].source and found[2].source is found[3].source and found[0].source is not found[2].source
    program = train.assemble(cfg, found, parallel.Seeds(2, 5, cfg.mesh, 4))
    size = len(found[0].source.train.label)
    assert program.first_row.tolist() == [0] * 4 + [size] * 4 and len(program.arrays["label"]) == 2 * size
    assert program.seeds.numbers.tolist() == [5, 6] * 4
    np.testing.assert_allclose(program.hparams["lr"], np.repeat([0.01, 0.003, 0.01, 0.003], 2).astype(np.float32))
    rows = train.order(cfg, program, 3)
    assert (rows[4:] == rows[:4] + size).all() and (rows[0] == rows[2]).all() and (rows[0] != rows[1]).any()


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("lr=0.1,0.2", r"FIELD=VALUE,VALUE"),
        ("optim.lr", r"FIELD=VALUE,VALUE"),
        ("optim.speed=1,2", r"FIELD=VALUE,VALUE"),
        ("net.depth=10,18", r"FIELD=VALUE,VALUE"),
        ("optim.lr=0.1,0.1", r"each value once"),
        ("optim.lr=0.1,", r"each value once"),
        ("optim.lr=0.1,fast", r"only numbers"),
        ("optim.rule=sgd,adam", r"only numbers"),
        ("data.side_px=32,64", r"texture_correlation, seed can vary"),
        ("data.texture_correlation=0.95,7", r"texture_correlation"),
    ],
)
def test_an_impossible_grid_says_why(grid, message):
    with pytest.raises(ValueError, match=message):
        members.open_all(tiny.mlp_config(grid=(grid,)))


def test_a_field_that_is_swept_twice_is_refused():
    with pytest.raises(ValueError, match=r"optim\.lr, optim\.lr is there twice"):
        members.open_all(tiny.mlp_config(grid=("optim.lr=0.1", "optim.lr=0.2")))


def test_what_is_compiled_into_the_step_cannot_be_swept():
    cfg = tiny.mlp_config(grid=("optim.b1=0.9,0.8",))
    found = members.open_all(cfg)
    with pytest.raises(ValueError, match="b1 is compiled into the step; in one array can vary lr, weight_decay"):
        train.assemble(cfg, found, parallel.Seeds(2, 0, cfg.mesh, 2))


def test_without_a_grid_there_is_one_grid_point_without_a_name():
    cfg = tiny.mlp_config()
    (only,) = members.open_all(cfg)
    assert only.name == "" and only.cfg == cfg and only.hparams == {}
