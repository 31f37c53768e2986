"""DeepFashion Remixed: which garments are in which set, on a made-up tree of the published layout, and what is wrong with one."""

import csv
import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from PIL import Image

from data_prep import deepfashion_remixed as script
from jaxbed.data import augment, boxes, deepfashion, folder
from jaxbed.evaluation import evaluate, image_tables
from jaxbed.method import Info, scalars
from jaxbed.methods import erm
from jaxbed.optim import Optim
from jaxbed.presets import datasets

INFO = Info(classes=2, train_size=40, steps_per_epoch=4, epochs=10)
SKIRT, VEST, SHORTS = 9, 5, 7  # category_id


def garment(category: int, **codes: int) -> dict:
    return {"category_id": category, "category_name": "?", **deepfashion.TRAINING, **codes}


SHIFTED = [garment(SKIRT, **dict([shift])) for shift in deepfashion.SHIFTS.values()]  # one for each OOD set, in their order
TREE = {
    "train": {
        "000001": [garment(VEST), garment(SKIRT, scale=1)],  # trained on, and small: a leak where parts are concatenated
        "000002": [garment(SHORTS), garment(VEST), garment(VEST)],
        "000003": [garment(VEST, scale=1)],
        "000004": [garment(VEST, scale=1, occlusion=1)],  # differs in two codes: in no set
        "000005": [garment(SHORTS)],
    },
    "validation": {
        "000001": [garment(VEST)],
        "000002": SHIFTED,  # in all OOD sets
        "000003": [garment(SHORTS, scale=1), garment(VEST, scale=3), garment(SKIRT, scale=3), garment(SKIRT)],
    },
}


def write(root: pathlib.Path, part: str, stem: str, garments: list[dict]) -> None:
    for name in ("image", "annos"):
        (root / part / name).mkdir(parents=True, exist_ok=True)
    items = {f"item{number}": one for number, one in enumerate(garments, 1)}
    (root / part / "annos" / f"{stem}.json").write_text(json.dumps({"source": "shop", "pair_id": 1, **items}))
    Image.new("RGB", (6, 9), (int(stem), 10 * len(garments), 20 * len(part))).save(root / part / "image" / f"{stem}.jpg")


@pytest.fixture
def root(tmp_path) -> pathlib.Path:
    for part, images in TREE.items():
        for stem, garments in images.items():
            write(tmp_path / "deepfashion2", part, stem, garments)
    return tmp_path / "deepfashion2"


def made(root: pathlib.Path, *options: str) -> dict[str, dict[str, str]]:
    """{set: {file: label}} of the table."""
    out = root.parent / "out.csv"
    assert script.main([str(root), str(out), *options]) == 0
    sets: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(out.read_text().splitlines()):
        sets.setdefault(row["split"], {})[row["file"].replace("/image/", " ").removesuffix(".jpg")] = row["label"]
    return sets


def test_garments_are_chosen_one_by_one_and_images_may_be_in_several_sets(root, capsys):
    sets = made(root)
    assert list(sets) == ["train", "test", *deepfashion.SHIFTS]
    assert sets["train"] == {"train 000001": "vest", "train 000002": "vest|shorts", "train 000005": "shorts"}
    assert sets["test"] == {"validation 000001": "vest", "validation 000003": "skirt"}
    assert sets["size_small"] == {"validation 000002": "skirt", "validation 000003": "shorts"}
    assert sets["size_large"] == {"validation 000002": "skirt", "validation 000003": "vest|skirt"}
    assert all(sets[name] == {"validation 000002": "skirt"} for name in list(deepfashion.SHIFTS)[2:])
    printed = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:3] for line in printed.splitlines()}
    assert lines["train"] == ["3", "48,000"] and lines["test"] == ["2", "-"] and lines["viewpoint_no_wear"] == ["1", "480"]
    assert "without" in printed and "5 images in train/, 3 in validation/" in printed


def test_concatenated_sets_have_no_image_with_a_training_garment(root):
    sets = made(root, "--splits", "concatenated")
    assert sets["size_small"] == {"train 000003": "vest", "validation 000002": "skirt"}
    seen = sets["train"].keys() | sets["test"].keys()
    assert not any(seen & sets[name].keys() for name in deepfashion.SHIFTS)
    rows = list(csv.DictReader((root.parent / "out.csv").read_text().splitlines()))
    assert {row["pair_id"] for row in rows if row["split"] == "size_small"} == {"train/1", "validation/1"}


def test_photos_of_trained_items_in_concatenated_sets_are_counted(root, capsys):
    made(root, "--splits", "concatenated")
    assert "of 1 images of train/ in the shifted sets, 1 show an item of which other photos are trained on" in capsys.readouterr().out
    made(root)
    assert "show an item" not in capsys.readouterr().out


def test_which_images_show_one_item_is_kept_with_the_answers(root):
    annotation = root / "validation" / "annos" / "000003.json"
    annotation.write_text(annotation.read_text().replace('"pair_id": 1, ', ""))  # unknown: the image stands for itself
    made(root)
    fields = {"size_px": 8, "threads": 1, "val_share": 0.4, "multi_label": True, "classes": deepfashion.CLASSES}
    source = folder.Config(train=str(root), table=str(root.parent / "out.csv"), **fields).open()
    assert source.sets["size_small"].item.tolist() == ["validation/1", ""] and source.sets["val"].item is None
    assert source.sets["zoom_large"].item.tolist() == ["validation/1"] and not any("ignored" in note for note in source.notes)
    evaluate.describe(root.parent, source, source.sets, dict.fromkeys(source.sets, "asked"))
    path = root.parent / "size_small" / "images.csv"
    assert path.read_text().startswith("name,label,cue,targets,pair_id\n")
    for separator in (",", ";"):
        pd.read_csv(path, dtype=str, keep_default_na=False).to_csv(path, sep=separator, index=False)
        images = image_tables.read(path)
        assert images.item.tolist() == ["validation/1", ""] and images.label.tolist() == [-1, -1]
    assert image_tables.read(root.parent / "val" / "images.csv").item is None
    with pytest.raises(ValueError, match="set val: item has 9 texts, but must have one for each of"):
        dataclasses.replace(source, sets={"val": source.sets["val"]._replace(item=np.array(["a"] * 9))})


def test_the_table_opens_with_all_classes_in_their_order(root):
    made(root)
    fields = {"size_px": 8, "threads": 1, "val_share": 0.4}
    preset = datasets.build("ERM", erm.Config(), "deepfashion_remixed").data
    source = folder.Config(
        train=str(root), table=str(root.parent / "out.csv"), multi_label=True, classes=preset.classes, fit=preset.fit, **fields
    ).open()
    assert len(source.class_names) == 13 and source.class_names[SKIRT - 1] == "skirt" and source.class_names[0] == "short sleeve top"
    assert set(source.sets) == {"val", "test", *deepfashion.SHIFTS}
    assert source.sets["size_large"].split.label.sum(0)[[VEST - 1, SKIRT - 1]].tolist() == [1, 2]
    assert len(source.train.label) + len(source.sets["val"].split.label) == 3 and source.train.image.shape[1:] == (8, 8, 3)
    leak = root.parent / "leak.csv"
    leak.write_text("file,label,split\ntrain/image/000001.jpg,vest,train\ntrain/image/000001.jpg,skirt,size_small\n")
    with pytest.raises(ValueError, match="or one in each of several test sets"):
        folder.Config(train=str(root), table=str(leak), multi_label=True, **fields).open()


def change(root: pathlib.Path, **fields) -> None:
    write(root, "train", "000003", [{**garment(VEST, scale=1), **fields}])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: change(root, scale=4), "train/annos/000003.json: scale of item1 is 4, and must be from 1 to 3: extract"),
        (lambda root: change(root, zoom_in="1"), "zoom_in of item1 is '1'"),
        (lambda root: change(root, viewpoint=True), "viewpoint of item1 is True"),
        (lambda root: change(root, category_id=14), "category_id of item1 is 14, and must be from 1 to 13"),
        (lambda root: change(root, occlusion=None), "occlusion of item1 is None"),
        (lambda root: write(root, "train", "000003", []), "000003.json describes no garment (item1, item2, ...)"),
        (lambda root: (root / "train/annos/000003.json").write_text("{"), "it is not JSON"),
        (lambda root: (root / "train/annos/000003.json").unlink(), "1 images of"),
        (lambda root: (root / "validation/image/000001.jpg").unlink(), "1 annotations of"),
        (lambda root: write(root, "validation", "000002", SHIFTED[:-1]), "set zoom_large is empty: no garment has scale 2, occlusion 2,"),
        (lambda root: (root / "validation").rename(root / "elsewhere"), "validation/image is missing: name the folder"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_cure(root, damage, message, capsys):
    damage(root)
    assert script.main([str(root), str(root.parent / "out.csv")]) == 2
    error = capsys.readouterr().err
    assert message in error and ("extract" in error or "delete" in error) and not (root.parent / "out.csv").exists()


# What the preset asks for


def test_areas_above_one_are_tried_and_rejected():
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.jit(jax.vmap(lambda key: jnp.stack(boxes.draw_box(key, (256, 256), (0.5, 2.0), (3 / 4, 4 / 3)))))
    _, _, height, width = np.asarray(draw(keys)).T
    assert (height <= 256).all() and (width <= 256).all()
    whole = (height == 256) & (width == 256)
    assert 0.04 < whole.mean() < 0.08  # 5.9 % of simulated draws fit none of ten times; a few others are whole
    assert 0.67 < (height * width / 256**2).mean() < 0.71
    augment.check(datasets.build("ERM", erm.Config(), "deepfashion_remixed").data.augment, (256, 256, 3))


def test_images_are_tested_whole():
    cfg = datasets.build("ERM", erm.Config(), "deepfashion_remixed").data.augment
    image = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), np.uint8)
    seen = augment.make_evaluation(cfg, (8, 8, 3))(image)
    np.testing.assert_allclose(seen, (image / 255 - np.array(cfg.mean)) / np.array(cfg.std), atol=1e-5)


def test_the_head_learns_at_its_own_rate():
    params = {"net": {"stage": {"kernel": jnp.ones(3)}, "head": {"kernel": jnp.ones(3), "bias": jnp.ones(1)}}}
    grads = jax.tree.map(lambda x: jnp.full_like(x, 0.5), params)
    for rule in ("sgd", "adam"):
        for settings in (Optim(rule=rule, lr=0.01, head_rate=10.0), Optim(rule=rule, lr=0.01, head_rate=10.0).on_vector()):
            made = settings.transform(INFO)(scalars(settings.hparams()))
            changed = optax.apply_updates(params, made.update(grads, made.init(params), params)[0])
            moved = jax.tree.map(lambda after, before: float((before - after)[0]), changed, params)
            assert moved["net"]["head"]["kernel"] == pytest.approx(10 * moved["net"]["stage"]["kernel"], rel=1e-3) != 0
            assert moved["net"]["head"]["bias"] == pytest.approx(moved["net"]["head"]["kernel"])
    with pytest.raises(ValueError, match=r'head_rate = 10\.0: this network has no layer named "head"'):
        made.update({"net": {"kernel": jnp.ones(3)}}, made.init({"net": {"kernel": jnp.ones(3)}}), {"net": {"kernel": jnp.ones(3)}})
