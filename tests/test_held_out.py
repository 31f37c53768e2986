"""Training on a share of the validation images: what is divided, and what stays."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import tiny

from jaxbed import config, main
from jaxbed.data import held_out
from jaxbed.data.source import EvaluationSet
from jaxbed.data.split import Split
from jaxbed.data.stream import Images
from jaxbed.methods import dfr
from jaxbed.training import members, plan

WHOLE = dataclasses.replace(tiny.DATA, val_images=64, texture_correlation=0.5)


@functools.cache
def sources():
    return WHOLE.open(), held_out.Config(WHOLE, 0.5, seed=3).open()


def test_validation_images_are_divided_and_nothing_else_changes():
    whole, half = sources()
    parts = half.train.name, half.sets["val"].split.name
    assert sorted(np.concatenate(parts)) == sorted(whole.sets["val"].split.name) and not set(parts[0]) & set(parts[1])
    rows = {name: row for row, name in enumerate(whole.sets["val"].split.name)}
    for split in (half.train, half.sets["val"].split):
        order = [rows[name] for name in split.name]
        for mine, theirs in zip(split, whole.sets["val"].split, strict=True):
            np.testing.assert_array_equal(mine, theirs[order])
    assert half.sets["val"].role == "val" and set(half.sets) == set(whole.sets)
    assert all(half.sets[name].split.name.tolist() == whole.sets[name].split.name.tolist() for name in whole.sets if name != "val")
    assert half.facts["trained_on_validation_share"] == 0.5 and half.class_names == whole.class_names


def test_each_label_and_cue_is_divided_alike_by_the_seed():
    label = np.repeat([0, 1, 1], [40, 9, 1]).astype(np.int32)
    bias = np.repeat([0, 0, 1], [40, 9, 1]).astype(np.int32)
    split = Split(np.zeros((50, 1, 1, 1), np.uint8), label, bias, np.arange(50).astype(str))
    chosen = [held_out.divide(split, 0.25, seed) for seed in (0, 0, 1)]
    for found in chosen:
        assert [found[:40].sum(), found[40:49].sum(), found[49:].sum()] == [10, 2, 1]  # the only one of its kind is trained on
    assert (chosen[0] == chosen[1]).all() and (chosen[0] != chosen[2]).any()


@dataclasses.dataclass
class Known:
    """Another data set, whose validation set says all that a set can say of its images."""

    of: Any
    images_per_item: int

    def open(self):
        source = self.of.open()
        count = len(source.sets["val"].split.label)
        number = np.arange(count)
        item = np.where(number % 5, (number // self.images_per_item).astype(str), "")
        val = source.sets["val"]._replace(real=number[:, None].astype(np.int32), item=item, anomaly=number % 7 == 0)
        assert all(field is not None for field in val), "a new field must be in this test"
        return dataclasses.replace(source, sets={**source.sets, "val": val})


def test_all_that_is_known_of_the_remaining_images_remains():
    whole, half = Known(WHOLE, 2).open().sets["val"], held_out.Config(Known(WHOLE, 2)).open().sets["val"]
    rows = [whole.split.name.tolist().index(name) for name in half.split.name]
    for field in set(EvaluationSet._fields) - {"split", "role", "decision"}:
        np.testing.assert_array_equal(getattr(half, field), getattr(whole, field)[rows])


@pytest.mark.parametrize("images_per_item", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_images_of_one_item_are_on_one_side(images_per_item, seed):
    val = Known(WHOLE, images_per_item).open().sets["val"]
    chosen = held_out.divide(val.split, 0.5, seed, val.item)
    for item in set(val.item) - {""}:
        assert len(set(chosen[val.item == item])) == 1
    assert len(set(chosen[val.item == ""])) == 2


def test_unknown_items_change_no_division():
    val = WHOLE.open().sets["val"]
    unknown = np.full(len(val.split.label), "")
    np.testing.assert_array_equal(held_out.divide(val.split, 0.5, 3, unknown), held_out.divide(val.split, 0.5, 3))


def test_streamed_images_stay_unread():
    read = []

    def one(row):
        read.append(row)
        return np.full((2, 2, 3), row, np.uint8)

    images = Images(one, np.array([f"{row}" for row in range(6)]), (2, 2))
    split = Split(images, np.arange(6, dtype=np.int32), np.full(6, -1, np.int32), images.names)
    picked = held_out.pick(split, np.array([4, 1]))
    assert not read and picked.image.shape == (2, 2, 2, 3) and picked.name.tolist() == ["4", "1"]
    found, taken = picked.image.take(np.array([1, 0]))
    assert found[:, 0, 0, 0].tolist() == [1, 4] and taken.tolist() == [1, 0] and picked.image.names.tolist() == ["4", "1"]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_a_share_that_leaves_nothing_is_refused(share):
    with pytest.raises(ValueError, match=f"data.share = {share}: must be a number, above 0 and below 1"):
        held_out.Config(WHOLE, share).open()


def test_single_images_of_their_kind_cannot_be_divided():
    with pytest.raises(ValueError, match=r"data.share = 0\.5 of the 16 validation images of shapes leaves none for training or"):
        held_out.Config(dataclasses.replace(WHOLE, val_images=16)).open()


def test_dfr_trains_its_network_on_the_whole_data_set_and_its_head_on_held_out_images(tmp_path):
    cfg = tiny.mlp_config(data=WHOLE, epochs=1, grid=("method.l1=0.0,0.1",), batch_size=8)
    cfg = dataclasses.replace(cfg, method=dfr.Config(held_out=0.5))
    assert main.run(cfg, tmp_path) == 0
    assert config.load(tmp_path / "stages" / "ERM").data == WHOLE
    last = plan.job(cfg, tmp_path)
    assert last.cfg.data == held_out.Config(WHOLE) and len(last.points[0].source.train.label) < WHOLE.val_images
    assert plan.members(cfg).tolist() == [0, 1, 0, 1]
    name, own, _ = members.combine(cfg)[0]
    assert (tmp_path / name / "responses" / "val" / "1.npz").is_file() and config.load(tmp_path / name) == own
