"""Checkpoints: what is saved comes back, on any mesh; what is damaged is named and never used."""

import functools
import itertools
import json
import os
import pathlib
import platform
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
import tiny
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxbed.models import mlp
from jaxbed.training import train
from jaxbed.training.checkpoint import Store

MESHES = [(1, 1), (2, 1), (1, 2), (2, 2)]  # rows of seeds x devices a row
LIST = "the list"
FOLDER = "the folder"


@functools.cache
def placement(rows: int, columns: int) -> NamedSharding:
    devices = jax.devices()[: rows * columns]
    return NamedSharding(jax.make_mesh((rows, columns), ("seed", "data"), axis_types=(AxisType.Auto,) * 2, devices=devices), P("seed"))


def tree(value: int = 0, large: bool = False) -> dict:
    """Every kind of leaf a run has, of two seeds."""
    rng = np.random.default_rng(value)
    return {
        "params": {"net": {"dense": {"kernel": rng.normal(size=(2, 3, 5)).astype(np.float32)}, "half": jnp.ones((2, 4), jnp.bfloat16) / 3}},
        "stats": {"net": {}},
        "alive": np.array([True, False]),
        "step": np.array([value, value + 1], np.int32),
        "byte": rng.integers(0, 256, (2, 7)).astype(np.uint8),
        **({"large": rng.normal(size=(2, 600, 1000)).astype(np.float32)} if large else {}),  # 2.3 MiB a seed
    }


def abstract(tree, sharding: NamedSharding):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def assert_same(found, expected) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype, jax.tree_util.keystr(path)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=jax.tree_util.keystr(path))


def store(folder: pathlib.Path, keep: int = 0) -> tuple[Store, list[str]]:
    """A store and what it says."""
    said: list[str] = []
    return Store(folder, 2, said.append, keep), said


def saved(folder: pathlib.Path, numbers: tuple[int, ...], keep: int = 0) -> tuple[Store, list[str]]:
    """A store that has saved tree(number) under each number."""
    made, said = store(folder, keep)
    for number in numbers:
        made.save(number, jax.device_put(tree(number), placement(1, 1)))
    made.wait()
    return made, said


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> pathlib.Path:
    """Checkpoints 1 and 2, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("two")
    saved(folder, (1, 2))
    return folder


FILES = ("_CHECKPOINT_METADATA", "orbax.checkpoint", "commit_success.txt", "state/_METADATA", "state/_sharding", "state/manifest.ocdbt")
FILES += ("state/array_metadatas/process_0", "state/ocdbt.process_0/manifest.ocdbt", "state/ocdbt.process_0/d/*", "state/d/*")

EMPTY = ("orbax.checkpoint", "commit_success.txt")  # only their being there says something


def one_file(folder: pathlib.Path, pattern: str) -> pathlib.Path:
    return next(path for path in sorted(folder.glob(pattern)) if path.is_file())


# What comes back


@pytest.mark.parametrize("there", MESHES)
def test_a_checkpoint_of_one_mesh_loads_on_another(tmp_path, there):
    made, _ = store(tmp_path)
    made.save(7, jax.device_put(tree(7), placement(*there)))
    made.wait()
    for here in MESHES:
        loaded = made.load(7, abstract(tree(7), placement(*here)))
        assert_same(loaded, tree(7))
        assert all(leaf.sharding == placement(*here) for leaf in jax.tree.leaves(loaded))


@pytest.mark.parametrize("method", ["erm", "lff"])
def test_a_run_in_progress_comes_back_whole(tmp_path, method):
    cfg = tiny.mlp_config(method, net=mlp.Config(()))
    program = tiny.program(cfg)
    batches, run = train.feeds_from(cfg, program, 0), train.start(cfg, program)
    for _ in range(3):
        run = program.advance(run, program.arrays, next(batches), program.seeds.array)
    made, said = store(tmp_path)
    made.save(3, run)
    made.wait()
    number, found = made.latest(program.abstract)
    assert number == 3 and not said
    assert_same(found, run)
    assert type(found) is type(run) and type(found.state) is type(run.state)


def test_numbers_rise_by_value_and_not_by_spelling(tmp_path):
    made, _ = saved(tmp_path, (9, 10, 100))
    assert made.numbers() == [9, 10, 100]
    assert made.latest(abstract(tree(), placement(1, 1)))[0] == 100


def test_an_empty_or_absent_folder_has_no_checkpoint_and_says_nothing(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        made, said = store(folder)
        assert made.numbers() == [] and made.latest(abstract(tree(), placement(1, 1))) is None and not said


def test_saving_a_number_again_replaces_it(tmp_path):
    made, said = saved(tmp_path, (1, 2))
    before = made.identity(2)
    made.save(2, jax.device_put(tree(5), placement(1, 1)))
    made.wait()
    assert made.numbers() == [1, 2] and made.identity(2) != before
    number, found = made.latest(abstract(tree(5), placement(1, 1)))
    assert number == 2 and not said
    assert_same(found, tree(5))


def test_while_a_number_is_being_replaced_neither_the_old_nor_the_new_counts(tmp_path, monkeypatch):
    made, _ = saved(tmp_path, (1, 2))
    monkeypatch.setattr(Store, "_finish", lambda self, number, response: response.result())  # killed just before the list
    made.save(2, jax.device_put(tree(5), placement(1, 1)))
    made.wait()
    again, said = store(tmp_path)
    number, found = again.latest(abstract(tree(), placement(1, 1)))
    assert number == 1 and len(said) == 1 and "2" in said[0] and "never finished" in said[0]
    assert_same(found, tree(1))


def test_equal_contents_are_told_from_different_ones(tmp_path):
    one, _ = saved(tmp_path / "one", (1, 2))
    assert one.identity(1) == saved(tmp_path / "one", ())[0].identity(1)
    assert one.identity(1) != one.identity(2)


# What is kept


def test_keep_leaves_the_latest_and_removes_older_ones_with_their_lists(tmp_path):
    made, said = saved(tmp_path, (1, 2, 3, 4), keep=2)
    assert made.numbers() == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "3.json", "4", "4.json"]
    for number in (3, 4):
        assert_same(made.load(number, abstract(tree(), placement(1, 1))), tree(number))
    assert not said


def test_keep_zero_removes_nothing(tmp_path):
    assert saved(tmp_path, (1, 2, 3, 4))[0].numbers() == [1, 2, 3, 4]


def test_damaged_newer_checkpoints_do_not_push_out_the_one_just_saved(tmp_path):
    """Both kept ones are damaged: training begins again at 0, and what it saves from there must survive."""
    saved(tmp_path, (90, 100), keep=2)
    for number in (90, 100):
        one_file(tmp_path / str(number), "state/_METADATA").write_bytes(b"damaged")
    again, said = store(tmp_path, keep=2)
    assert again.latest(abstract(tree(), placement(1, 1))) is None and said
    for number in (10, 20, 30):
        again.save(number, jax.device_put(tree(number), placement(1, 1)))
        again.wait()
        found = store(tmp_path)[0].latest(abstract(tree(), placement(1, 1)))
        assert found is not None and found[0] == number
        assert_same(found[1], tree(number))


def test_a_damaged_newer_checkpoint_does_not_count_among_those_kept(tmp_path):
    saved(tmp_path, (90, 100), keep=2)
    one_file(tmp_path / "100", "state/_METADATA").write_bytes(b"damaged")
    again, _ = store(tmp_path, keep=2)
    assert again.latest(abstract(tree(), placement(1, 1)))[0] == 90
    for number in (92, 94):
        again.save(number, jax.device_put(tree(number), placement(1, 1)))
    again.wait()
    intact = [number for number in again.numbers() if not again.fault(number)]
    assert intact == [92, 94]


# Arrays that are overwritten while they are being written


# one size on every mesh, the others on one device and on four, or on two
@pytest.mark.parametrize(
    ("shape", "mesh"),
    [
        *(((2, 600, 1000), mesh) for mesh in MESHES),
        *itertools.product([(2, 3), (2, 4096)], [(1, 1), (2, 2)]),
        ((2, 4, 512, 1024), (1, 2)),
    ],
    ids=str,
)
def test_arrays_may_be_overwritten_as_soon_as_save_returns(tmp_path, mesh, shape):
    bump = jax.jit(lambda leaves: [x + 1 for x in leaves], donate_argnums=0)
    first = jax.jit(lambda leaf: leaf.ravel()[0])
    leaves = jax.device_put([np.zeros(shape, np.float32), np.zeros(shape, np.int32), np.zeros(shape[:2], np.float32)], placement(*mesh))
    leaves = bump(leaves)
    made, _ = store(tmp_path)
    rounds = 6 if np.prod(shape) < 1e6 else 3 if np.prod(shape) < 4e6 else 2
    for number in range(rounds):
        value = float(first(leaves[0]))  # of a copy: no view of the leaf itself may protect it
        made.save(number, leaves)
        assert value == 1 + 10 * number
        given_back = 0
        for _ in range(10):
            old, leaves = leaves, bump(leaves)
            given_back += all(x.is_deleted() for x in old)
        assert given_back  # memory really was overwritten; JAX refuses to where the writer still holds a view
        jax.block_until_ready(leaves)
    made.wait()
    for number in range(rounds):
        for leaf in made.load(number, abstract(leaves, placement(1, 1))):
            assert (np.asarray(leaf) == 1 + 10 * number).all()


def test_deleted_arrays_are_still_saved(tmp_path):
    made, _ = store(tmp_path)
    leaves = jax.device_put(tree(3, large=True), placement(2, 1))
    made.save(3, leaves)
    for leaf in jax.tree.leaves(leaves):
        leaf.delete()
    rubbish = [jnp.full((2, 600, 1000), 7.0) for _ in range(8)]  # takes the freed memory
    jax.block_until_ready(rubbish)
    assert_same(_waited(made, 3), tree(3, large=True))


def _waited(made: Store, number: int):
    made.wait()
    return made.load(number, abstract(tree(number, large=True), placement(1, 1)))


# Damage


def damage(folder: pathlib.Path, number: int, how: str, pattern: str) -> None:
    if pattern == LIST:
        path = folder / f"{number}.json"
    elif pattern == FOLDER:
        path = folder / str(number)
    else:
        path = one_file(folder / str(number), pattern)
    if how == "removed":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif how == "flipped":
        content = bytearray(path.read_bytes()) or bytearray(1)
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_text(how)


WHOLE = [("removed", LIST), ("removed", FOLDER)]
LISTS = [(text, LIST) for text in ("", "rubbish", "{", "{}", "[]", "null", "3", "\0\0", '{"state": 1}')]
PARTS = [("flipped", name) for name in FILES] + [("removed", name) for name in FILES]
PARTS += [("truncated", name) for name in FILES if name not in EMPTY]


def test_what_lies_beside_the_files_of_a_checkpoint_does_no_harm(two, tmp_path):
    """As file systems and synchronisation leave it."""
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    for path in (folder / "2", folder / "2" / "state", folder):
        for name in (".DS_Store", "._state", "2 (1).json", "2.sync-conflict.json"):
            (path / name).write_bytes(b"nothing")
    made, said = store(folder)
    number, found = made.latest(abstract(tree(), placement(1, 1)))
    assert number == 2 and not said
    assert_same(found, tree(2))


@pytest.mark.parametrize("how, pattern", WHOLE + LISTS + PARTS)
def test_a_damaged_checkpoint_is_named_and_passed_over(two, tmp_path, how, pattern):
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    damage(folder, 2, how, pattern)
    made, said = store(folder)
    number, found = made.latest(abstract(tree(), placement(1, 1)))
    assert number == 1
    assert_same(found, tree(1))
    assert len(said) == 1 and str(folder / "2") in said[0]
    reason = said[0].partition("passed over: ")[2]
    assert len(reason) > 10 and reason == made.fault(2)
    with pytest.raises(ValueError, match=str(folder / "2")):
        made.load(2, abstract(tree(), placement(1, 1)))


def test_the_reason_names_a_file(two, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    damage(folder, 2, "flipped", "state/_METADATA")
    assert "state/_METADATA" in store(folder)[0].fault(2)


def test_the_parametrised_files_are_all_there_are(two):
    patterns = {path for pattern in FILES for path in (two / "2").glob(pattern)}
    assert patterns == {path for path in (two / "2").rglob("*") if path.is_file()}


@pytest.mark.parametrize("how, pattern", [("removed", LIST), ("removed", FOLDER), ("flipped", "state/d/*"), ("rubbish", LIST)])
def test_where_all_are_damaged_there_is_none_and_it_says_so(two, tmp_path, how, pattern):
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    for number in (1, 2):
        damage(folder, number, how, pattern)
    made, said = store(folder)
    assert made.latest(abstract(tree(), placement(1, 1))) is None
    assert [str(folder / "2") in said[0], str(folder / "1") in said[1]] == [True, True]
    assert len(said) == 3 and "no checkpoint" in said[2] and str(folder) in said[2]


def leave_behind(folder: pathlib.Path) -> None:
    """What a killed process leaves: orbax's temporary folder, a half-written list, a stray note."""
    shutil.copytree(folder / "2", folder / "3.orbax-checkpoint-tmp")
    shutil.copytree(folder / "2", folder / "2.orbax-checkpoint-tmp-17")
    (folder / f".3.json.{platform.node()}-{2**22 + 1}.partial").write_text('{"state')  # no process has such a number
    (folder / "notes.json").write_text("{}")
    (folder / ".DS_Store").write_text("")


def test_remains_of_a_killed_process_are_no_checkpoints(two, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    leave_behind(folder)
    made, said = store(folder)
    assert made.numbers() == [1, 2]
    number, found = made.latest(abstract(tree(), placement(1, 1)))
    assert number == 2 and not said
    assert_same(found, tree(2))


def test_remains_of_a_killed_process_do_not_hinder_the_next_save(two, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    leave_behind(folder)
    (folder / "notes.json").unlink()
    made, said = store(folder, keep=2)
    made.save(3, jax.device_put(tree(3), placement(1, 1)))
    made.wait()
    number, found = made.latest(abstract(tree(), placement(1, 1)))
    assert number == 3 and not said and made.numbers() == [2, 3] and not list(folder.glob("*.partial"))
    assert_same(found, tree(3))


def test_a_folder_of_a_half_written_checkpoint_is_overwritten(two, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    damage(folder, 2, "removed", LIST)
    damage(folder, 2, "removed", "state/d/*")
    made, said = store(folder)
    made.save(2, jax.device_put(tree(8), placement(1, 1)))
    made.wait()
    number, found = made.latest(abstract(tree(), placement(1, 1)))
    assert number == 2 and not said
    assert_same(found, tree(8))


def test_loading_a_number_that_was_never_saved_is_an_error_that_names_it(two):
    with pytest.raises(ValueError, match=str(two / "5")):
        store(two)[0].load(5, abstract(tree(), placement(1, 1)))


# Errors of the background write


def block_list(folder: pathlib.Path, number: int) -> None:
    """A folder lies where the list of a checkpoint would be written."""
    (folder / f".{number}.json.{platform.node()}-{os.getpid()}.partial").mkdir()


def test_an_error_while_writing_surfaces_at_wait_and_only_once(tmp_path):
    made, _ = store(tmp_path)
    block_list(tmp_path, 1)
    made.save(1, jax.device_put(tree(1), placement(1, 1)))
    with pytest.raises(OSError, match=r"1\.json"):
        made.wait()
    assert made.numbers() == [] and made.fault(1)
    made.wait()


def test_an_error_while_writing_surfaces_at_the_next_save_but_one_at_the_latest(tmp_path):
    made, _ = store(tmp_path)
    block_list(tmp_path, 1)
    made.save(1, jax.device_put(tree(1), placement(1, 1)))
    with pytest.raises(OSError, match=r"1\.json"):
        made.save(2, jax.device_put(tree(2), placement(1, 1)))
        made.save(3, jax.device_put(tree(3), placement(1, 1)))
    made.wait()
    assert 1 not in made.numbers() and 3 not in made.numbers()


def test_a_number_saved_twice_in_a_row_holds_the_second(tmp_path):
    made, abstract = store(tmp_path)[0], placement(1, 1)
    for content in (1, 2):
        made.save(7, jax.device_put(tree(content), abstract))
    made.wait()
    expected = jax.device_put(tree(2), abstract)
    found = made.load(7, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), expected))
    assert not made.fault(7)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_folder_that_is_a_file_is_an_error_at_once_or_at_wait(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    made, _ = store(tmp_path / "checkpoints")
    with pytest.raises(OSError):
        made.save(1, jax.device_put(tree(1), placement(1, 1)))
        made.wait()


# How it lies on the disk


def opened(folder: pathlib.Path, leaf: str):
    spec = {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": f"file://{folder}/state/", "path": f"{leaf}/"}}
    return tensorstore.open(spec).result()


@pytest.mark.parametrize("mesh", MESHES)
def test_a_large_leaf_is_stored_so_that_one_seed_reads_without_the_others(tmp_path, mesh):
    made, _ = store(tmp_path)
    content = tree(1, large=True)
    made.save(1, jax.device_put(content, placement(*mesh)))
    made.wait()
    array = opened(tmp_path / "1", "large")
    chunk = array.chunk_layout.read_chunk.shape
    assert chunk[0] == 1 and 600 * 1000 // mesh[1] <= np.prod(chunk) <= 600 * 1000
    assert not any(codec["name"] in ("zstd", "gzip", "blosc") for codec in _codecs(array.spec().to_json()["metadata"]["codecs"]))
    np.testing.assert_array_equal(array[1].read().result(), content["large"][1])


def _codecs(codecs: list) -> list:
    return [inner for codec in codecs for inner in [codec, *_codecs(codec.get("configuration", {}).get("codecs", []))]]


def test_reading_one_seed_needs_its_bytes_only(tmp_path):
    """Damage to the chunk of seed 0 must not keep seed 1 from being read."""
    made, _ = store(tmp_path)
    content = np.stack([np.full((600, 1000), 3.0, np.float32), np.full((600, 1000), 5.0, np.float32)])
    made.save(1, jax.device_put({"large": content}, placement(1, 1)))
    made.wait()
    path = max((path for path in (tmp_path / "1" / "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes().replace(np.float32(3.0).tobytes(), np.float32(4.0).tobytes()))
    one = np.asarray(opened(tmp_path / "1", "large")[1].read().result())
    assert (one == 5.0).all()
    assert "state/" in made.fault(1)


def test_the_list_holds_size_and_digest_of_every_file(two):
    listing = json.loads((two / "2.json").read_text())
    files = {str(path.relative_to(two / "2")): path.stat().st_size for path in (two / "2").rglob("*") if path.is_file()}
    assert {name: size for name, (size, _) in listing.items()} == files
