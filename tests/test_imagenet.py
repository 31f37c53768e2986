"""ImageNet and its shifted sets in published layouts: made-up images in CI, real stimuli where they are at hand."""

import hashlib
import unicodedata

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxbed.data import imagenet, imagenet_classes
from jaxbed.evaluation import decision_rules
from jaxbed.training import members
from jaxbed.training.log import Log

WNIDS = imagenet_classes.WNIDS
SIXTEEN = tuple(decision_rules.SIXTEEN)
SMALL = {"side_px": 8, "stored_px": 10, "resize_px": 10, "val_from_train": 100}


def image(path, colour, size=(12, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    for i, wnid in enumerate(WNIDS):
        image(folder / "train" / wnid / f"{wnid}_1.png", (i % 256, i // 256, 0))
    (folder / "val").mkdir()
    for wnid in WNIDS:
        (folder / "val" / wnid).symlink_to(folder / "train" / wnid)
    for name, classes in (("a", decision_rules.IMAGENET_A), ("r", decision_rules.IMAGENET_R)):
        for i in classes:
            image(folder / name / WNIDS[i] / "x.png", (int(i) % 256, int(i) // 256, 0))
    for i, shape in enumerate(SIXTEEN):
        image(folder / "edge" / shape / f"{shape}1.png", (i, 0, 0), (8, 8))
        image(folder / "cue" / shape / f"{shape}1-{SIXTEEN[i - 1]}2.png", (i, 0, 0), (8, 8))
        image(folder / "sketch" / "dnn" / "session-1" / f"{i:04d}_ske_dnn_0_{shape}_00_{shape}-0001-sketch-1.png", (i, 0, 0), (8, 8))
    return folder


def class_of(image):
    """The number that `image` put into the colour."""
    return image[:, 0, 0, 0].astype(int) + 256 * image[:, 0, 0, 1].astype(int)


def opened(root, **options):
    return imagenet.Config(**{"train": str(root / "train"), **SMALL, **options}).open()


def test_training_and_held_out_images_are_apart_and_labelled(root):
    source = opened(root)
    val = source.sets["val"]
    assert set(source.sets) == {"val"} and val.role == "val" and source.components == ()
    assert source.train.image.shape == (900, 10, 10, 3) and val.split.image.shape == (100, 8, 8, 3)
    for split in (source.train, val.split):
        np.testing.assert_array_equal(class_of(split.image), split.label)
    assert sorted([*source.train.label, *val.split.label]) == list(range(1000)) and not set(source.train.name) & set(val.split.name)
    assert source.class_names == WNIDS
    again = opened(root, split_seed=1)
    assert set(again.sets["val"].split.label) != set(val.split.label)


def test_sets_of_200_classes_have_imagenets_numbering(root):
    source = opened(root, imagenet_a=str(root / "a"), imagenet_r=str(root / "r"))
    for name in ("imagenet_a", "imagenet_r"):
        masked, unmasked = source.sets[name], source.sets[f"{name}_unmasked"]
        assert (masked.decision, unmasked.decision, masked.role) == (name, "argmax", "ood")
        np.testing.assert_array_equal(class_of(masked.split.image), masked.split.label)
        np.testing.assert_array_equal(masked.split.label, getattr(decision_rules, name.upper()))


def test_sixteen_class_sets(root):
    places = {"edge": str(root / "edge"), "cue_conflict": str(root / "cue"), "sketch": str(root / "sketch")}
    source = opened(root, **places, decision="sixteen_mean_logit")
    for name in places:
        split, role, decision, *_ = source.sets[name]
        assert role == "ood" and decision == "sixteen_mean_logit" and split.image.shape == (16, 8, 8, 3)
        np.testing.assert_array_equal(split.label, split.image[:, 0, 0, 0])
    assert source.sets["cue_conflict"].split.bias.tolist() == [15, *range(15)]
    assert (source.sets["edge"].split.bias == -1).all()


def test_imagenet_val_is_a_test_set_and_selects_only_where_asked_to(root):
    apart = opened(root, val=str(root / "val"))
    assert apart.sets["imagenet"].role == "test" and len(apart.sets["val"].split.label) == 100
    same = opened(root, val=str(root / "val"), val_from_train=0)
    np.testing.assert_array_equal(same.sets["val"].split.image, same.sets["imagenet"].split.image)
    with pytest.raises(ValueError, match=r"val_from_train = 0 selects epochs on ImageNet-val: name it with --config\.data\.val"):
        opened(root, val_from_train=0)


def test_mixtures_have_names_and_shares(root):
    source = opened(root, more=(str(root / "train"),), shares=(0.5, 0.5))
    assert [part.size for part in source.components] == [900, 900] and len(source.train.label) == 1800
    np.testing.assert_array_equal(class_of(source.train.image), source.train.label)
    assert opened(root, more=(str(root / "train"),)).components == ()


@pytest.mark.parametrize("ending", [".png", ".bmp"])
def test_no_other_form_of_a_held_out_image_is_trained_on(tmp_path, ending):
    for number in range(12):
        image(tmp_path / "train" / f"n{number % 3}" / f"n{number % 3}_{number}.png", (number, 0, 0))
        image(tmp_path / "other" / f"n{number % 3}" / f"n{number % 3}_{number}{ending}", (number, 0, 0))
    image(tmp_path / "other" / "n1" / "deep" / f"n1_4{ending}", (4, 0, 0))
    source = opened(tmp_path, more=(str(tmp_path / "other"),), val_from_train=6)
    held = set(class_of(source.sets["val"].split.image))
    assert len(held) == 6 and not held & set(class_of(source.train.image))
    assert source.facts["held_out_of_more"] == 6 + (4 in held) and len(source.train.label) == 6 + 13 - 6 - (4 in held)


def test_large_sets_stay_on_disk(root):
    source = opened(root, resident_gib=0.0)
    assert not isinstance(source.train.image, np.ndarray) and source.train.image.shape == (900, 10, 10, 3)
    rows = np.array([5, 700])
    np.testing.assert_array_equal(class_of(source.train.image.take(rows)[0]), source.train.label[rows])


def test_unreadable_training_images_are_an_error_or_left_out(root, tmp_path):
    for wnid in WNIDS[:3]:
        image(tmp_path / wnid / "whole.png", (0, 0, 0))
    (tmp_path / WNIDS[1] / "damaged.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"image n01443537/damaged\.png cannot be read .*data\.corrupt=skip"):
        opened(root, train=str(tmp_path), val_from_train=1, split_seed=2)
    source = opened(root, train=str(tmp_path), val_from_train=1, split_seed=2, corrupt="skip")
    assert sorted([*source.train.label, *source.sets["val"].split.label]) == [0, 1, 2]
    assert source.facts["unreadable"] == ["n01443537/damaged.png"]


@pytest.mark.parametrize("resident_gib", [0.0, 1.0])
def test_unreadable_held_out_images_are_left_out_and_reported(tmp_path, resident_gib, capsys):
    for number in range(8):
        image(tmp_path / "n0" / f"{number}.png", (0, 0, 0))
        (tmp_path / "n0" / f"damaged{number}.png").write_bytes(b"nothing")
    source = opened(tmp_path, train=str(tmp_path), val_from_train=12, corrupt="skip", resident_gib=resident_gib)
    names = source.sets["val"].split.name
    assert 4 <= len(names) <= 8 and not [name for name in names if "damaged" in name]
    lost = source.facts["unreadable"]
    assert len(lost) >= 12 - len(names)
    Log(tmp_path).data(members.one(None, source))
    reported = f"images that cannot be read and are left out: {', '.join(lost[:3])} and {len(lost) - 3} others, which log.jsonl names"
    assert reported in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": ""}, "data.train is empty"),
        ({"val_from_train": 1000}, "data.val_from_train = 1000: .* has 1000 images"),
        ({"shares": (1.0,), "more": ("more",)}, "2 training sets need one share each"),
        ({"shares": (1.0, 0.0), "more": ("more",)}, "each a number, above 0"),
        ({"shares": (1.0,), "corrupt": "skip"}, "an image of another set could replace"),
        ({"more": ("edge",)}, "edge has the wrong classes: it lacks n01440764 and has airplane"),
        ({"edge": "a"}, "data.edge: .*a has the wrong classes: it lacks airplane"),
        ({"imagenet_a": "edge"}, "data.imagenet_a: .*edge has 16 classes, but imagenet_a has 200"),
        ({"imagenet_a": "r"}, "data.imagenet_a: .*r does not have the classes of imagenet_a: it lacks n01558993 and has n01443537"),
        ({"imagenet_r": "a", "train": "none"}, "data.imagenet_r: .*a does not have the classes of imagenet_r"),
        ({"imagenet_r": "val"}, "data.imagenet_r: .*val has images of class n01440764, which imagenet_r does not have"),
        ({"val": "train"}, "data.val = .*train is also trained on"),
        ({"val": "train/../train", "more": ("val",)}, "data.val = .*train is also trained on"),
        ({"cae": "a", "more": ("a",)}, "data.cae = .*a is also trained on"),
        ({"edge": "edge", "decision": "argmax"}, "data.decision = 'argmax' is not one of sixteen_mean_prob, "),
        ({"side_px": 0}, "data.side_px = 0: must be a whole number, 1 to"),
        ({"threads": -1}, "data.threads = -1: must be a whole number, 0 to"),
        ({"split_seed": -1}, "data.split_seed = -1: must be a whole number, 0 to"),
        ({"resident_gib": float("nan")}, "data.resident_gib = nan: must be a number, 0 or more"),
        ({"more": ("",)}, "data.more = .*: each must name a folder"),
        ({"shares": (float("nan"),)}, "data.shares = .*each a number, above 0"),
        ({"train": "a", "edge": "edge"}, "edge: needs a network for the 1000 ImageNet classes, but .*a has 200"),
        ({"cue_conflict": "edge"}, r"cue-conflict image airplane/airplane1\.png: the name must be"),
    ],
)
def test_what_cannot_be_used_is_an_error(root, options, message):
    def place(value):
        return str(root / value) if isinstance(value, str) and (root / value).is_dir() and value else value

    options = {key: tuple(map(place, value)) if isinstance(value, tuple) else place(value) for key, value in options.items()}
    with pytest.raises(ValueError, match=message):
        opened(root, **options)


NAMES = {
    "from 0": lambda i: str(i),
    "from 1": lambda i: str(i + 1),
    "padded": lambda i: f"{i:04d}",
    "in words": lambda i: f"class {i * 7919 % 1000}",
    "accents": lambda i: f"e\u0301 {i}",  # as macOS writes them
    "another order": lambda i: str(999 - i),
    "from 5": lambda i: str(i + 5),
}
COUNTS = ("from 0", "from 1", "padded")  # taken as ImageNet's order
PLACES = {  # where images in such folders are -> options, given that place and the folder of ordinary ones
    "val": lambda place, root: {"val": place},
    "val alone": lambda place, root: {"train": "none", "val": place, "val_from_train": 0},
    "train": lambda place, root: {"train": place, "val": str(root / "val")},
}


def rename(root, folder, name):
    """The images of `train` in folders with other names."""
    folder.mkdir()
    for i, wnid in enumerate(WNIDS):
        (folder / name(i)).symlink_to(root / "train" / wnid)
    return str(folder)


@pytest.mark.parametrize(("names", "place"), [(names, list(PLACES)[number % 3]) for number, names in enumerate(NAMES)])
def test_labels_are_imagenets_whatever_the_names_of_folders(root, tmp_path, names, place):
    """Each place has names that are taken as ImageNet's order, and names that a list gives the classes of."""
    name = NAMES[names]
    options = PLACES[place](rename(root, tmp_path / "images", name), root)
    if names not in COUNTS:
        rows = [f"{name(i)},{wnid if i % 2 else f'{i}.0'}" for i, wnid in enumerate(WNIDS)]
        text = unicodedata.normalize("NFC", "\n".join(["folder,class", *rows]) + "\n")
        (tmp_path / "classes.csv").write_text(text)
        options["class_index"] = str(tmp_path / "classes.csv")
    source = opened(root, **options, edge=str(root / "edge"), imagenet_a=str(root / "a"))
    assert source.class_names == WNIDS
    for split in (source.train, *(source.sets[name].split for name in ("val", "imagenet") if name in source.sets)):
        if len(split.label) > 1:
            np.testing.assert_array_equal(class_of(split.image), split.label)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (NAMES["in words"], r"has classes such as 'class 0', whose ImageNet classes are unknown.*--config\.data\.class_index=FILE"),
        (lambda i: str(2 * i), r"has the classes 0 to 1998, but ImageNet is numbered from 0 or 1 without gaps"),
        (lambda i: f"n{i:08d}", r"has n00000000 \(\d+ unknown\), which is not one of the 1000 classes"),
    ],
)
def test_classes_in_an_unknown_order_are_refused(root, tmp_path, name, message):
    place = rename(root, tmp_path / "renamed", name)
    for options in ({"train": place}, {"val": place}, {"train": "none", "val": place, "val_from_train": 0}):
        with pytest.raises(ValueError, match=message):
            opened(root, **options, edge=str(root / "edge"))


def test_numbers_taken_for_classes_are_reported(root, tmp_path, capsys):
    place = rename(root, tmp_path / "renamed", str)
    opened(root, val=place)
    assert (
        f"data.val: {place}: classes 0 to 999 are assumed to be those of ImageNet in the order of sorted wnids" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("name", "members"), [("imagenet_a", decision_rules.IMAGENET_A), ("imagenet_r", decision_rules.IMAGENET_R)])
def test_sets_of_200_classes_may_be_numbered(tmp_path, name, members):
    for place, numbers in (("imagenets", members), ("own", range(200)), ("from 1", range(1, 201))):
        for i, number in zip(members, numbers, strict=True):
            image(tmp_path / place / str(number) / "x.png", (int(i) % 256, int(i) // 256, 0))
        source = imagenet.Config(train="none", **{**SMALL, "val_from_train": 0}, **{name: str(tmp_path / place)}).open()
        split = source.sets[name].split
        np.testing.assert_array_equal(class_of(split.image), split.label)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("folder,wnid\n", "has no column class in its header 'folder,wnid'"),
        ("folder,class\na,n00000000\n", "line 2: class 'n00000000' is neither a wnid of ImageNet-1k nor a number from 0 to 999"),
        ("folder,class\na,1000\n", "line 2: class '1000' is neither"),
        ('folder,class\na,"1,000"\n', "line 2: class '1,000' is neither"),
        ("folder,class\na,1\na,2\n", "line 3: folder 'a' is listed with two classes"),
        (None, r"class_index = .*index\.csv is not a file"),
    ],
)
def test_lists_of_classes_that_cannot_be_used_are_an_error(tmp_path, text, message):
    path = tmp_path / "index.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        imagenet_classes.read_index(path)


def test_without_training_images_the_sets_stand_alone(root):
    source = imagenet.Config(train="none", **{**SMALL, "val_from_train": 0}, edge=str(root / "edge")).open()
    assert set(source.sets) == {"edge"} and len(source.class_names) == 1000 and len(source.train.label) == 1
    source = imagenet.Config(train="none", **{**SMALL, "val_from_train": 0}, val=str(root / "train")).open()
    assert set(source.sets) == {"imagenet"} and source.class_names == WNIDS


def test_real_stimuli_load_in_their_published_layout(root, shared_data):
    folder = shared_data / "stimuli"
    places = {"edge": "edge", "silhouette": "silhouette", "cue_conflict": "cue-conflict"}
    source = opened(root, **{name: str(folder / place) for name, place in places.items()}, side_px=224, resize_px=256)
    assert {name: source.sets[name].split.image.shape for name in places} == {
        "edge": (160, 224, 224, 3),
        "silhouette": (160, 224, 224, 3),
        "cue_conflict": (128, 224, 224, 3),
    }
    for name in ("edge", "silhouette"):
        assert (np.bincount(source.sets[name].split.label) == 10).all()
    first = source.sets["edge"].split
    with Image.open(folder / "edge" / first.name[0]) as stored:
        np.testing.assert_array_equal(first.image[0], np.asarray(stored.convert("RGB")))  # no resize of 224-px stimuli
    split = source.sets["cue_conflict"].split
    for name, label, bias in zip(split.name, split.label, split.bias, strict=True):
        assert name.startswith(SIXTEEN[label] + "/") and SIXTEEN[bias] in name.rpartition("-")[2]
    zoomed = opened(root, edge=str(folder / "edge"), side_px=224, resize_px=256, zoom=True).sets["edge"].split
    assert zoomed.image.shape == first.image.shape and (zoomed.image != first.image).any()


# Decisions


def test_class_lists_are_the_published_ones():
    for classes, total, digest in (
        (decision_rules.IMAGENET_A, 102178, "973e8c3e530bf5dbd49999d046e74084ba5184ab98036b42b111d8dcdecf1015"),
        (decision_rules.IMAGENET_R, 86135, "a1d9a9ace3098120f5db861d97049116efe80683f4e48c65a62f9bd30fc3366a"),
    ):
        assert len(classes) == 200 and classes.sum() == total and (np.diff(classes) > 0).all()
        assert hashlib.sha256(",".join(map(str, classes)).encode()).hexdigest() == digest


def test_decisions_among_200_ignore_all_other_classes():
    logits = np.random.default_rng(0).normal(size=(50, 1000))
    for name, classes in (("imagenet_a", decision_rules.IMAGENET_A), ("imagenet_r", decision_rules.IMAGENET_R)):
        expected = classes[logits[:, classes].argmax(1)]
        np.testing.assert_array_equal(decision_rules.named(name).decide(jnp.asarray(logits)), expected)
        with pytest.raises(ValueError, match="a decision among 200 ImageNet classes needs all 1000 logits; the network has 16"):
            decision_rules.named(name).decide(jnp.zeros((1, 16)))
