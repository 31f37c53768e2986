"""Configurations: every file of configs/ on every data set, the flags that override them, and their life as JSON."""

import dataclasses
import functools
import importlib
import json
import pathlib
import re
import shlex
import shutil
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from PIL import Image

from jaxbed import command_line, config, parallel, values
from jaxbed.data import (
    augment,
    bar,
    bffhq,
    biased_images,
    colored_mnist,
    corrupted_cifar10,
    folder,
    held_out,
    imagenet,
    noise,
    shapes,
    waterbirds,
)
from jaxbed.evaluation import decision_rules
from jaxbed.methods import lff
from jaxbed.models import efficientnet, mlp, resnet, simple_conv, style_network
from jaxbed.presets import datasets, published
from jaxbed.training import log, members
from jaxbed.values import look_up

ROOT = pathlib.Path(__file__).resolve().parents[1]
OWN_DATA = {
    "efficientnet_lite0",
    "network",
    "resnet50",
    "vit_b16",
    "deepaugment_augmix",
    "deepaugment_erm",
    "deepaugment_noise2net",
    "stylized_erm",
    "speckle",
    "random_erasing",
    "dfr_val",
}  # not for every data set
FILES = sorted(path.stem for path in (ROOT / "configs").glob("*.py") if path.stem not in OWN_DATA)
COMMON_NETS = {"corrupted_cifar10", "bffhq", "waterbirds", "bar", "folder"}  # whose networks other settings have too
MULTI_LABEL = {"deepfashion_remixed"}  # which most methods refuse
LARGE = ("imagenet", "imagenet_biasbed", "noise")  # have the large network
ALWAYS = {
    **dict.fromkeys(LARGE, ("erm",)),
    "colored_mnist_resnet": ("erm", "lff"),
}  # other files are run when asked for; it is shapes' network
COMPILED = ("erm", "sagnet", "infodrop", "debiased")  # in the large network of imagenet and noise; tracing it takes seconds
# refuse a setting whose network is an MLP
NEED_MAPS = {"padain", "sagnet", "infodrop", "infodrop_finetune", "mixstyle", "dsu", "efdmix", "rsc", "debiased"}
SECOND_PHASES = {"infodrop_finetune", "fast_adversarial", "noise2net", "augmix"}  # have a schedule of their own
BATCH = 8


def of_file(stem: str):
    return importlib.import_module(f"configs.{stem}")


# Every file on every data set


@functools.cache
def fake_digits() -> list[np.ndarray]:
    """60,000 and 10,000 digits of 2 x 2 pixels, labels balanced."""
    rng = np.random.default_rng(0)
    arrays = []
    for size in (60_000, 10_000):
        arrays += [rng.integers(0, 256, (size, 2, 2), np.uint8), np.arange(size) % 10]
    return arrays


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of three classes with six images each."""
    folder = tmp_path_factory.mktemp("images")
    for i in range(18):
        path = folder / f"n{i % 3:08d}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (300, 256), (i, 0, 0)).save(path)
    return folder


def biased_source(cfg: biased_images.Config, images):
    """BFFHQ, Waterbirds or BAR of ten training images and four in the other sets, by a table."""
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))
    rows = [f"{name},{i % 2},{(i > 9) + (i > 13)},{i // 2 % 2},{i // 2 % 2}\n" for i, name in enumerate(names)]
    biased_images.table_path(images, cfg.conflicting_percent).write_text("img_filename,y,split,bias,place\n" + "".join(rows))
    return dataclasses.replace(cfg, dir=str(images), side_px=64).open()


def small_source(cfg: config.Train, monkeypatch, images):
    """The data of a configuration, but little of it."""
    if isinstance(cfg.data, imagenet.Config):
        return dataclasses.replace(cfg.data, train=str(images), val_from_train=2).open()
    if isinstance(cfg.data, colored_mnist.Config):
        monkeypatch.setattr(colored_mnist, "read_idx", lambda folder: fake_digits())
        return cfg.data.open()
    if isinstance(cfg.data, corrupted_cifar10.Config):
        image, label = np.zeros((200, 32, 32, 3), np.uint8), np.arange(200) % 10
        monkeypatch.setattr(corrupted_cifar10, "read_cifar", lambda folder: [image, label, image, label])
        return dataclasses.replace(cfg.data, dir=str(images)).open()
    if isinstance(cfg.data, folder.Config) and cfg.data.multi_label:
        rows = [f"{path.relative_to(images)},{cfg.data.classes[i % 13]}\n" for i, path in enumerate(images.rglob("*.png"))]
        (images / "lists.csv").write_text("file,label\n" + "".join(rows))
        return dataclasses.replace(cfg.data, train=str(images), table=str(images / "lists.csv"), size_px=64).open()
    if isinstance(cfg.data, folder.Config):
        return dataclasses.replace(cfg.data, train=str(images), size_px=64).open()
    if isinstance(cfg.data, biased_images.Config):
        return biased_source(cfg.data, images)
    if isinstance(cfg.data, shapes.Config):
        return dataclasses.replace(cfg.data, train_images=16, val_images=16, test_images=16).open()
    assert isinstance(cfg.data, noise.Config), "say here how to make this data set small"
    return dataclasses.replace(cfg.data, side_px=64, train_images=16, val_images=2).open()


@pytest.fixture(scope="module")
def open_once(images):
    """`small_source` of a configuration; equal data are opened once."""
    sources = {}

    def opened(cfg: config.Train):
        if repr(cfg.data) not in sources:
            with pytest.MonkeyPatch.context() as monkeypatch:
                sources[repr(cfg.data)] = small_source(cfg, monkeypatch, images)
        return sources[repr(cfg.data)]

    return opened


def shapes_of(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def record_steps(monkeypatch, kind: type) -> list[tuple]:
    """Fills up, while a program of such a method is assembled, with the shapes of the state before and after a step, and of metrics."""
    steps, real = [], kind.make

    def make(self, *given):
        method = real(self, *given)

        def step(state, batch, key):
            after, metrics = method.step(state, batch, key)
            steps.append((shapes_of(state), shapes_of(after), {name: value.shape for name, value in metrics.items()}))
            return after, metrics

        return method._replace(step=step)

    monkeypatch.setattr(kind, "make", make)
    return steps


@pytest.mark.parametrize(
    ("stem", "dataset"),
    [
        pytest.param(stem, dataset, marks=pytest.mark.slow if stem not in ALWAYS.get(dataset, FILES) else ())
        for stem in FILES
        for dataset in datasets.SETTINGS
        if dataset not in LARGE or stem in COMPILED[: 2 if dataset != "noise" else None]
        if dataset not in COMMON_NETS or stem in ("erm", "lff")
        if dataset not in MULTI_LABEL or stem == "erm"
    ],
)
def test_every_file_runs_on_every_data_set(stem, dataset, monkeypatch, open_once):
    cfg = of_file(stem).get_config(dataset)
    source = open_once(cfg)
    # its seeds one after another, to be traced faster; test_methods maps each method over seeds
    cfg = dataclasses.replace(cfg, batch_size=BATCH, seeds=1, mesh=config.Mesh(seed=1, data=1, within="map"))
    # one block of the network or none, to be traced faster: blocks are the same on all data sets, and test_models counts them
    blocks = (0, 1, 0, 0) if dataset == "shapes" else (0, 0, 0, 0)
    monkeypatch.setattr(resnet, "BLOCKS", dict.fromkeys(resnet.BLOCKS, blocks))
    if stem == "debiased":  # whose style network is a file
        cfg = dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, style=style_network.Config("random", width=4, stages=1)))
    if stem == "hex":  # which projects units + 1 directions out of a batch
        cfg = dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, units=2))
    if stem == "softcon":
        assert cfg.method.contrastive < of_file(stem).get_config(dataset).batch_size
        cfg = dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, contrastive=2))
    if stem in NEED_MAPS and isinstance(cfg.net, mlp.Config):
        with pytest.raises(ValueError, match=r"give it a resnet\.Config"):
            tiny.program(cfg, source)
        return
    steps = record_steps(monkeypatch, type(cfg.method))
    program = tiny.program(cfg, source)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), program.abstract.state)
    for before, after, metrics in steps:
        assert before == after == shapes_of(one)
        assert "loss" in metrics and all(shape == () for shape in metrics.values())
        assert set(metrics) == set(program.abstract.sums)
    assert steps
    image = jax.eval_shape(source.scale, jax.ShapeDtypeStruct((BATCH, *source.train.image.shape[1:]), np.uint8))
    logits = jax.eval_shape(program.method.predict, one.params, one.stats, image)
    assert logits.shape == (BATCH, len(source.class_names)) and logits.dtype == np.float32
    for name, evaluation_set in source.sets.items():
        assert jax.eval_shape(decision_rules.named(evaluation_set.decision).decide, logits).shape == (BATCH,), name


@pytest.mark.parametrize("dataset", datasets.SETTINGS)
@pytest.mark.parametrize("stem", FILES)
def test_every_configuration_survives_json(stem, dataset):
    cfg = of_file(stem).get_config(dataset)
    config.check(cfg)
    back = config.from_dict(json.loads(json.dumps(config.to_dict(cfg))))
    assert back == cfg and type(back.method) is type(cfg.method)
    assert isinstance(back.optim.milestones_epochs, tuple) and back.eval.sets == ()
    assert config.differences(config.to_dict(back), config.to_dict(cfg)) == []


def test_mixtures_have_equal_shares_and_their_schedules():
    for which, shares in (("cae", (1, 1)), ("edsr_biasbed", (1, 1)), ("cae_edsr", (1, 1, 1)), ("imagenet", (1, 1, 1))):
        cfg = of_file("deepaugment_erm").get_config(which)
        assert cfg.data.shares == shares and cfg.init_from == ""
        assert (cfg.epochs, cfg.batch_size) == ((100, 256) if "biasbed" in which else (30, 1024))
        assert cfg.data.decision == ("sixteen_mean_logit" if "biasbed" in which else "sixteen_mean_prob")
        config.check(config.from_dict(config.to_dict(cfg)))
    assert of_file("deepaugment_erm").get_config().name == "DeepAugment ERM (CAE + EDSR)"
    with pytest.raises(ValueError, match="DeepAugment has no images 'shapes': after the colon comes cae, edsr, cae_edsr"):
        of_file("deepaugment_erm").get_config("shapes")


def test_without_its_folders_a_mixture_is_refused(images):
    cfg = of_file("deepaugment_erm").get_config("cae")
    with pytest.raises(ValueError, match="1 training sets need one share each"):
        dataclasses.replace(cfg.data, train=str(images), val_from_train=2).open()


def test_stylised_training_sets():
    of = of_file("stylized_erm").get_config
    assert of("shapes").data.texture_correlation == 1 / 16 and of() == of("shapes")
    assert of("imagenet").epochs == 60 and of("imagenet").optim.milestones_epochs == (20, 40)
    assert of("imagenet_biasbed").epochs == 100
    with pytest.raises(ValueError, match="there is no stylised 'colored_mnist': after the colon comes shapes, imagenet, both or"):
        of("colored_mnist")


PUBLISHED_SCHEDULES = [  # epochs, milestones, batch, rate, weight decay, Nesterov: each as its authors give it
    (("stylized_erm:imagenet",), (60, (20, 40), 256, 0.1, 1e-4, False)),
    (("stylized_erm:both",), (45, (15, 30), 256, 0.1, 1e-4, False)),
    (("augmix:imagenet",), (90, (30, 60), 256, 0.1, 1e-4, False)),
    (
        ("augmix:imagenet", "--config.epochs=180", "--config.optim.schedule=cosine", "--config.optim.nesterov=True"),
        (180, "cosine", 256, 0.1, 1e-4, True),
    ),
    (("noise2net:imagenet",), (30, "cosine", 1024, 0.1, 1e-4, True)),
    (("deepaugment_augmix",), (30, "cosine", 1024, 0.1, 1e-4, True)),
    (("speckle:imagenet",), (120, (60,), 70, 1e-3, 0, False)),
]


@pytest.mark.parametrize(("words", "expected"), PUBLISHED_SCHEDULES)
def test_schedules_on_imagenet_are_the_published_ones(words, expected, monkeypatch):
    cfg = parse(monkeypatch, f"--config={words[0]}", *words[1:])
    optim = cfg.optim
    when = optim.milestones_epochs if optim.schedule == "step" else optim.schedule
    assert (cfg.epochs, when, cfg.batch_size, optim.lr, optim.weight_decay, optim.nesterov) == expected
    assert (optim.rule, optim.momentum, optim.warmup_epochs, optim.gamma) == ("sgd", 0.9, 0, 0.1)


def test_both_sets_are_shuffled_together_and_neither_may_be_missing(images, tmp_path):
    cfg = of_file("stylized_erm").get_config("both")
    assert (cfg.data.more, cfg.data.shares, cfg.name) == (("SIN/train",), (), "Stylized ERM (SIN + IN)")
    data = dataclasses.replace(cfg.data, train=str(images), val_from_train=2)
    with pytest.raises((ValueError, FileNotFoundError), match="SIN/train is not a folder"):
        data.open()
    shutil.copytree(images, tmp_path / "SIN" / "train")
    source = dataclasses.replace(data, more=(str(tmp_path / "SIN" / "train"),)).open()
    assert len(source.train.label) == 2 * (18 - 2) and source.components == ()


def test_the_fill_of_deepfashion_remixed_is_that_of_its_authors():
    cfg = of_file("augmix").get_config("deepfashion_remixed")
    assert cfg.method.fill == "dark_red" and "method.fill = dark_red" in cfg.published and config.overridden(cfg) == []
    assert of_file("augmix").get_config("imagenet").method.fill == "black"


def test_augmentations_are_of_data_sets_that_augment():
    speckle, erasing = (of_file(stem).get_config for stem in ("speckle", "random_erasing"))
    assert isinstance(speckle().data, shapes.Config) and speckle().data.augment.noise == "speckle"
    fine_tuned = speckle("imagenet")
    assert (fine_tuned.epochs, fine_tuned.batch_size, fine_tuned.optim.lr, fine_tuned.optim.weight_decay) == (120, 70, 1e-3, 0)
    assert fine_tuned.data.augment.crop == "resized" and speckle("folder").optim == of_file("erm").get_config("folder").optim
    forms = {dataset: erasing(dataset).data.augment.erase_form for dataset in ("shapes", "corrupted_cifar10")}
    assert forms == {"shapes": "torchvision", "corrupted_cifar10": "zhong"} and erasing().data.augment.erase == 0.5
    with pytest.raises(ValueError, match="Random erasing is an augmentation, and colored_mnist has none"):
        erasing("colored_mnist")


@pytest.mark.parametrize("stem", FILES)
def test_every_file_runs_on_shapes_unless_told_otherwise(stem):
    cfg = of_file(stem).get_config()
    assert cfg == of_file(stem).get_config("shapes") and isinstance(cfg.data, shapes.Config)


def test_algorithms_have_names_of_their_own():
    names = [of_file(stem).get_config().name for stem in FILES]
    assert len(set(names)) == len(names) >= 4


@pytest.mark.parametrize("dataset", datasets.SETTINGS)
def test_all_methods_share_the_setting_of_a_data_set(dataset):
    """What is compared must differ in the method alone, and in what its authors publish for this data set."""
    found = [of_file(stem).get_config(dataset) for stem in FILES if stem not in SECOND_PHASES]
    first, *others = [dataclasses.replace(cfg, name="", method=None, published="") for cfg in found if "optim." not in cfg.published]
    assert len(others) >= len(found) - 3 and all(other == first for other in others)


@pytest.mark.parametrize(
    ("stem", "dataset", "values", "text"),
    [
        ("disent", "bffhq", {"lambda_dis": 2, "lambda_swap": 0.1, "lambda_swap_biased": 2}, "disent on bffhq: authors' code"),
        ("disent", "bar", {"lambda_dis": 1, "lambda_swap": 1, "lambda_swap_biased": 1}, "disent on bar: code of BiasEnsemble"),
        ("disent", "waterbirds", {"lambda_dis": 2}, "disent on waterbirds: none published, those of BFFHQ"),
        ("disent", "shapes", {"lambda_dis": 10}, "disent on shapes: none published, the method's own defaults"),
        ("disent", "corrupted_cifar10", {"lambda_dis": 5}, "disent on corrupted_cifar10 at 1 %: authors' code"),
        ("disent", "corrupted_cifar10:0.5", {"lambda_dis": 1}, "disent on corrupted_cifar10 at 0.5 %: authors' code"),
        ("disent", "corrupted_cifar10:20", {"lambda_dis": 1}, "disent on corrupted_cifar10 at 20 %: none published, those of 5 %"),
        ("biasensemble", "bar", {"epochs_before": 20}, "lff on bar: authors' code"),
        ("biasensemble_disent", "bffhq", {"epochs_before": 2, "base.lambda_dis": 2}, "disent on bffhq: authors' code"),
        ("jtt", "waterbirds", {"epochs_before": 60, "upweight": 100}, "60 of 300 epochs"),
        ("mixup", "corrupted_cifar10", {"alpha": 1}, "CIFAR-10"),
        ("cutmix", "corrupted_cifar10", {"p": 0.5}, "CIFAR"),
        ("cutmix", "imagenet", {"p": 1}, "mixing on imagenet: authors' code"),
        ("softcon", "imagenet", {"weight": 1, "ratio": 0}, "authors' code"),
        ("rsc", "imagenet_biasbed", {"variant": "imagenet"}, "rsc on imagenet: authors' code"),
        ("erm", "bffhq", {}, ""),
    ],
)
def test_a_method_has_the_settings_published_for_the_data_set(stem, dataset, values, text):
    cfg = of_file(stem).get_config(dataset)
    assert {name: look_up(cfg.method, name, name) for name in values} == values
    assert text in cfg.published and bool(text) == bool(cfg.published)
    assert config.to_dict(cfg)["published"] == cfg.published  # as config.json has it


def test_published_decays_are_at_the_authors_shares_of_the_run():
    for dataset, gamma, lr in (("bffhq", 0.1, 1e-4), ("colored_mnist", 0.5, 1e-2), ("corrupted_cifar10:0.5", 0.5, 5e-4)):
        cfg = of_file("disent").get_config(dataset)
        assert (cfg.optim.schedule, cfg.optim.gamma, cfg.optim.lr) == ("step", gamma, lr)
        np.testing.assert_allclose(cfg.optim.milestones_epochs, np.array([0.4, 0.6, 0.8]) * cfg.epochs)


def test_what_a_command_line_overrides_is_told(tmp_path, capsys):
    cfg = of_file("disent").get_config("corrupted_cifar10")
    assert config.overridden(cfg) == config.overridden(tiny.mlp_config()) == []
    for field, value in (("data.conflicting_percent", 5.0), ("method.lambda_dis", 3.0), ("optim.milestones_epochs", (1.0,))):
        assert config.overridden(values.with_field(cfg, field, value)) == [f"{field} = {value}"]
    changed = tiny.mlp_config("lff", published="lff on shapes: paper (method.q = 0.5, method.alpha = 0.7)")
    log.Log(tmp_path).header(changed, members.one(changed, changed.data.open()))
    assert "overridden: method.q = 0.7\n" in capsys.readouterr().out


def test_the_table_of_published_settings_names_fields_that_there_are(capsys):
    for kind, rows in published.TABLE.items():
        known = {field.name for field in dataclasses.fields(kind)}
        named = {place if isinstance(place, str) else place[0] for place in rows}
        assert named <= set(datasets.SETTINGS)
        assert all(set(settings.values) <= known and settings.source for settings in rows.values())
    published.main()
    assert (
        "| disent | bffhq | lambda_dis 2.0, lambda_swap 0.1, lambda_swap_biased 2.0, decay 0.1 | authors' code" in capsys.readouterr().out
    )


@pytest.mark.parametrize("dataset", ["shapes:5", "bffhq:many", "bffhq:-1", "noise:1"])
def test_a_ratio_where_there_is_none_is_refused(dataset):
    with pytest.raises(ValueError, match="the part after a second colon is a percentage"):
        of_file("erm").get_config(dataset)


def test_two_configurations_share_no_part():
    one, other = (of_file("erm").get_config() for _ in range(2))
    one.optim.lr = 77.0
    one.data.side_px = 64
    assert other.optim.lr != 77.0 and other.data.side_px == 32


def test_colored_mnist_has_the_numbers_of_the_paper():
    cfg = of_file("lff").get_config("colored_mnist")
    assert cfg.net.widths == (100, 100, 16) and cfg.data.input_scale == "double255"
    assert (cfg.optim.rule, cfg.optim.lr, cfg.optim.weight_decay) == ("adam", 1e-2, 0)
    assert (cfg.batch_size, cfg.epochs, cfg.seeds) == (256, 200, 5)


# What a file says of itself


def commands(stem: str) -> list[list[str]]:
    return [shlex.split(line) for line in of_file(stem).__doc__.splitlines() if line.startswith("python -m ")]


@pytest.mark.parametrize("stem", FILES)
def test_docstring_shows_commands_that_work(stem, monkeypatch):
    assert commands(stem)
    for words in commands(stem):
        assert words[:3] == ["python", "-m", "jaxbed.main"]
        assert words[3].removeprefix("--config=").partition(":")[0] == stem
        config.check(parse(monkeypatch, *words[3:]))


NAMED = [
    (stem, override)
    for stem in FILES
    for override in re.findall(r"--config\.[\w.]+=\w+", (of_file(stem).__doc__ or "").partition("python -m")[0])
]


@pytest.mark.parametrize(("stem", "override"), NAMED)
def test_overrides_named_in_the_docstring_exist(stem, override, monkeypatch):
    plain, given = (parse(monkeypatch, f"--config={stem}", *words) for words in ((), (override,)))
    assert plain != given


# Flags


def parse(monkeypatch, *arguments: str) -> config.Train:
    """The configuration that `python -m jaxbed.main ARGUMENTS` would have."""
    monkeypatch.chdir(ROOT)
    return command_line.parse(arguments).cfg


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("speed=1", "--config.speed=1: no field 'speed' among name, method"),
        ("optim.rate=1", "no field 'rate' among rule, lr"),
        ("seeds.x=1", "seeds is a single value, 3, and has no field 'x'"),
        ("speed.x=1", "no field 'speed' among name, method"),
        ("optim=sgd", "name one of its fields, optim.rule, optim.lr, .*; what optim is, the file says"),
    ],
)
def test_a_field_that_is_not_there_is_refused_with_those_that_are(monkeypatch, override, message):
    with pytest.raises(ValueError, match=message):
        parse(monkeypatch, "--config=configs/erm.py", f"--config.{override}")


@pytest.mark.parametrize(
    ("file", "override", "path", "value"),
    [
        ("erm.py", "seeds=10", "seeds", 10),
        ("erm.py", "name=ERM, again", "name", "ERM, again"),
        ("erm.py", "optim.lr=0.01", "optim.lr", 0.01),
        ("erm.py", "optim.lr=1", "optim.lr", 1.0),
        ("erm.py", "optim.milestones_epochs=(3,4.5)", "optim.milestones_epochs", (3.0, 4.5)),
        ("erm.py", "shared_order=true", "shared_order", True),
        ("erm.py", "mesh.within=map", "mesh.within", "map"),
        ("erm.py", "eval.sets=('val','edge')", "eval.sets", ("val", "edge")),
        ("erm.py", "eval.sets=edge", "eval.sets", ("edge",)),
        ("erm.py:colored_mnist", "net.widths=(7,8,9)", "net.widths", (7, 8, 9)),
        ("erm.py:colored_mnist", "net.widths=7,8", "net.widths", (7, 8)),
        ("erm.py:colored_mnist", "data.dir=/somewhere/else", "data.dir", "/somewhere/else"),
        ("erm.py:colored_mnist", "data.conflicting_percent=5", "data.conflicting_percent", 5.0),
        ("sagnet.py", "method.variant=biasbed", "method.variant", "biasbed"),
        ("sagnet.py", "method.style_stage=2", "method.style_stage", 2),
        ("lff.py", "save.resume_every_minutes=0", "save.resume_every_minutes", 0.0),
    ],
)
def test_flags_override_one_field_in_its_own_type(monkeypatch, file, override, path, value):
    plain, found = parse(monkeypatch, f"--config=configs/{file}"), parse(monkeypatch, f"--config=configs/{file}", f"--config.{override}")
    got = functools.reduce(getattr, path.split("."), found)
    assert got == value and type(got) is type(value)
    before = functools.reduce(getattr, path.split("."), plain)
    assert config.differences(config.to_dict(plain), config.to_dict(found)) == [f"{path}: {jsoned(before)} / {jsoned(value)}"]


def jsoned(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("override", ["seed=3", "optim.learning_rate=1", "data.folder=x", "method.q=0.5"])
def test_flags_for_fields_that_do_not_exist_are_refused(monkeypatch, override):
    field = override.partition("=")[0].rpartition(".")[2]
    with pytest.raises(ValueError, match=f"no field {field!r}( among |: method has no fields$)"):
        parse(monkeypatch, "--config=configs/erm.py", f"--config.{override}")


@pytest.mark.parametrize("override", ["seeds=many", "seeds=1.5", "optim.lr=fast", "shared_order=maybe", "data.side_px=32px"])
def test_flags_of_the_wrong_type_are_refused(monkeypatch, override):
    with pytest.raises(ValueError, match=f"--config.{override}: .* must be "):
        parse(monkeypatch, "--config=configs/erm.py", f"--config.{override}")


def test_whole_parts_cannot_be_overridden_by_a_word(monkeypatch):
    with pytest.raises(ValueError, match=r"--config\.method=lff: name one of its fields, of which it has none; what method is"):
        parse(monkeypatch, "--config=configs/erm.py", "--config.method=lff")


def test_an_unknown_data_set_is_refused_with_the_known_ones(monkeypatch):
    with pytest.raises(ValueError, match=f"no setting for data set 'mnist': .*one of {', '.join(datasets.SETTINGS)}"):
        datasets.build("ERM", None, "mnist")
    with pytest.raises(ValueError, match=f"one of {', '.join(datasets.SETTINGS)}"):
        parse(monkeypatch, "--config=configs/erm.py:mnist")


def test_a_file_outside_the_project_may_use_what_is_inside(monkeypatch, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from jaxbed.presets import datasets\nfrom jaxbed.methods import lff\n"
        "def get_config(dataset='shapes'):\n    return datasets.build('mine', lff.Config(q=0.5), dataset)\n"
    )
    cfg = parse(monkeypatch, f"--config={path}:noise", "--config.method.alpha=0.9")
    assert (cfg.name, cfg.method, type(cfg.data)) == ("mine", lff.Config(q=0.5, alpha=0.9), noise.Config)


# check


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs = 0: nothing is trained, so init_from must name weights"),
        ({"first_seed": 2**31 - 2}, "first_seed = 2147483646: must be from 0 to 2147483645, for 2 seeds"),
        ({"name": " "}, "name = ' ' is empty; give it a name"),
        ({"name": "a\tb"}, "name = .* holds an invisible character"),
        ({"batch_size": 2.5}, "batch_size = 2.5: must be a whole number, 1 to"),
        ({"seeds": True}, "seeds = true: must be a whole number"),
        ({"shared_order": 1}, "shared_order = 1: must be true or false"),
        ({"net": mlp.Config(("a",))}, r"net.widths = \('a',\): must be several values in brackets, each a whole number"),
        ({"net": mlp.Config(8)}, "net.widths = 8: must be several values"),
        ({"optim": tiny.Optim(lr=float("nan"))}, r"optim.lr = nan: must be a number, 0 or more \(default: 0.1\)"),
        ({"optim": tiny.Optim(milestones_epochs=(5, -1))}, r"optim.milestones_epochs = \(5, -1\): must be several values"),
        ({"optim": tiny.Optim(b2=1.0)}, "optim.b2 = 1.0: must be a number, 0 to below 1"),
    ],
)
def test_settings_that_no_run_can_have_are_refused(change, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        config.check(tiny.train_config(**change))


def parts_of_configurations() -> list:
    """One of every kind of dataclass that a configuration of this package can hold."""
    built = [
        of_file(stem).get_config(dataset) for stem in FILES for dataset in datasets.SETTINGS if dataset not in COMMON_NETS or stem == "erm"
    ]
    built += [tiny.train_config(net=net) for net in (simple_conv.Config(), efficientnet.Config())]
    built += [tiny.train_config(data=held_out.Config(data())) for data in (bar.Config, bffhq.Config, waterbirds.Config)]
    found: dict[type, object] = {}

    def collect(part: object) -> None:
        found.setdefault(type(part), part)
        for field in dataclasses.fields(part):
            if dataclasses.is_dataclass(inner := getattr(part, field.name)):
                collect(inner)

    for cfg in built:
        collect(cfg)
    return [pytest.param(part, id=f"{kind.__module__}.{kind.__name__}") for kind, part in found.items()]


ANY_NUMBER = {"mean"}  # fields of which every finite number can be meant
NEVER = (float("nan"), float("inf"), -float("inf"), "1", None)


@pytest.mark.parametrize("part", parts_of_configurations())
def test_every_number_has_a_range_and_nothing_outside_is_accepted(part):
    values.check(part, "part")
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        hint = str(values.hints(type(part))[field.name])
        whole, number = "int" in hint, "float" in hint or "Literal[" in hint
        outside = [*NEVER, *([] if field.name in ANY_NUMBER else [-1, -1e-9]), *([2**31, 0.5] if whole else [])]
        for strange in outside if whole or number else ():
            changed = dataclasses.replace(part, **{field.name: (strange,) * len(value or "1") if isinstance(value, tuple) else strange})
            with pytest.raises(ValueError, match=rf"^part\.{field.name} = .*: must be .*"):
                values.check(changed, "part")


@dataclasses.dataclass
class Theirs:
    """Of a user, whose types say less."""

    anything: Any = 3
    number: int | None = None
    listed: list = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    optim: tiny.Optim = dataclasses.field(default_factory=tiny.Optim)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"anything": "a", "number": 2, "listed": [1], "counts": {"a": 1}}, ""),
        ({"anything": float("nan")}, "theirs.anything = nan: must be anything but a number that is not finite"),
        ({"number": 2.5}, "theirs.number = 2.5: must be a whole number or NoneType"),
        ({"listed": 3}, "theirs.listed = 3: must be list"),
        ({"optim": 3}, "theirs.optim = 3: must be Optim"),
        ({"optim": parallel.Mesh()}, r"theirs.optim = Mesh\(.*: must be Optim"),
    ],
)
def test_types_that_say_less_are_no_error(change, message):
    if message:
        with pytest.raises(ValueError, match=f"^{message}"):
            values.check(Theirs(**change), "theirs")
    else:
        values.check(Theirs(**change), "theirs")


def test_the_least_settings_are_accepted():
    config.check(tiny.train_config(epochs=1, batch_size=1, seeds=1, eval=config.Eval(batch_size=1), first_seed=0, name="x"))


def test_more_than_the_training_set_in_a_batch_is_refused():
    with pytest.raises(ValueError, match=r"batch_size = 128 is larger than the training set of shapes \(64 images\)"):
        tiny.program(tiny.mlp_config(batch_size=128))


# JSON


@dataclasses.dataclass
class Part:
    sizes: tuple[int, ...] = (1, 2)
    pairs: tuple = ((1.5, "a"), ())
    nothing: None = None
    flag: bool = True


@dataclasses.dataclass
class Whole:
    part: Part
    more: tuple[Part, ...] = ()


def test_nested_parts_and_tuples_come_back_as_they_were():
    whole = Whole(Part(sizes=()), (Part(), Part(flag=False)))
    tree = config.to_dict(whole)
    assert tree["is"] == f"{__name__}:Whole" and tree["part"]["is"] == f"{__name__}:Part"
    back = config.from_dict(json.loads(json.dumps(tree)))
    assert back == whole and isinstance(back.more[1], Part) and back.part.pairs == ((1.5, "a"), ()) and back.more[1].flag is False


@pytest.mark.parametrize("value", [{1, 2}, {"a": 1}, np.arange(3), len, b"x"], ids=["set", "dict", "array", "function", "bytes"])
def test_values_that_json_cannot_keep_are_refused(value):
    with pytest.raises(ValueError, match=f"of type {type(value).__name__} cannot be kept as JSON"):
        config.to_dict(Whole(Part(sizes=value)))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"is": f"{__name__}:Part", "width": 1, "depth": 2}, "Part has no field depth, width: .*another version"),
        ({"sizes": [1]}, r"not a saved config: no \"is\" among \['sizes'\]"),
        ({"is": "jaxbed.config:check"}, "jaxbed.config:check is not a dataclass of this version"),
        ({"is": "jaxbed.method:Info"}, "jaxbed.method:Info is not a dataclass"),
        ({"is": "jaxbed.optim:Optimizer"}, "jaxbed.optim:Optimizer is not a dataclass"),
        ({"is": "jaxbed.methods.gone:Config"}, "jaxbed.methods.gone:Config is not a dataclass"),
        ({"is": f"{__name__}:Whole"}, "Whole.*part"),
        ({"is": f"{__name__}:Whole", "part": {"is": f"{__name__}:Part", "width": 1}}, "Part has no field width"),
    ],
    ids=["unknown fields", "no is", "function", "named tuple", "gone class", "gone module", "missing field", "nested"],
)
def test_what_this_version_did_not_save_is_refused(tree, message):
    with pytest.raises(ValueError, match=message):
        config.from_dict(tree)


def test_saved_configuration_is_loaded_from_its_workdir(tmp_path):
    cfg = tiny.train_config("sagnet_biasbed", seeds=7)
    config.save(cfg, tmp_path / "config.json")
    assert config.load(tmp_path) == config.load(str(tmp_path)) == cfg


def test_a_folder_without_configuration_is_refused_with_the_cure(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/config.json is missing.*python -m jaxbed.main"):
        config.load(tmp_path)


def test_differences_name_path_and_both_values():
    one = tiny.train_config()
    other = dataclasses.replace(one, seeds=3, optim=dataclasses.replace(one.optim, lr=0.5), net=mlp.Config((4,)))
    found = config.differences(config.to_dict(one), config.to_dict(other))
    assert "seeds: 2 / 3" in found and "optim.lr: 0.05 / 0.5" in found
    assert "net.is: jaxbed.models.resnet:Config / jaxbed.models.mlp:Config" in found and "net.widths: None / [4]" in found
    assert all(line.partition(":")[0] in ("seeds", "optim.lr") or line.startswith("net.") for line in found)
    assert config.differences(config.to_dict(one), config.to_dict(one)) == []


# The workdir of a run


@pytest.mark.parametrize(
    "change",
    [
        {"eval": config.Eval(batch_size=7, sets=("edge",))},
        {"mesh": parallel.Mesh(within="map")},
        {"save": config.Save(1.0)},
        {"data": imagenet.Config(train="elsewhere", edge="new", decision="sixteen_mean_logit")},
    ],
)
def test_a_run_goes_on_with_other_settings_that_it_was_not_trained_by(tmp_path, change):
    former = tiny.train_config(data=imagenet.Config(train="here"))
    config.claim(former, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    now = dataclasses.replace(former, **change)
    config.claim(now, tmp_path)
    assert config.load(tmp_path) == now
    with pytest.raises(ValueError, match=r"other settings \(there / now\): data.stored_px: 256 / 300. Take"):
        config.claim(dataclasses.replace(now, data=dataclasses.replace(now.data, stored_px=300)), tmp_path)


def test_a_run_of_a_version_that_did_not_save_what_may_change_goes_on(tmp_path):
    former = tiny.train_config(data=imagenet.Config(train="here"))
    config.save(former, tmp_path / "config.json")
    tree = json.loads((tmp_path / "config.json").read_text())
    assert {"mesh", "data.train"} < set(tree.pop("may_change"))
    (tmp_path / "config.json").write_text(json.dumps(tree))
    (tmp_path / "checkpoints").mkdir()
    assert config.load(tmp_path) == former
    config.claim(dataclasses.replace(former, data=imagenet.Config(train="elsewhere")), tmp_path)
    assert "may_change" in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ValueError, match=r"optim\.lr: 0\.05 / 0\.5"):
        config.claim(dataclasses.replace(former, optim=dataclasses.replace(former.optim, lr=0.5)), tmp_path)


def test_a_workdir_is_claimed_once_and_for_the_same_settings(tmp_path):
    cfg = tiny.train_config()
    config.claim(cfg, tmp_path / "a" / "b")
    before = (tmp_path / "a" / "b" / "config.json").read_bytes()
    config.claim(tiny.train_config(), tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "config.json").read_bytes() == before and config.load(tmp_path / "a" / "b") == cfg
    (tmp_path / "a" / "b" / "checkpoints").mkdir()  # something was trained
    with pytest.raises(ValueError, match=r"holds a run with other settings \(there / now\): seeds: 2 / 4. Take another --workdir"):
        config.claim(tiny.train_config(seeds=4), tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "config.json").read_bytes() == before


def test_a_run_of_a_version_with_fewer_fields_is_claimed_at_their_defaults(tmp_path):
    cfg = tiny.mlp_config("dfr")
    config.claim(cfg, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    saved = json.loads((tmp_path / "config.json").read_text())
    del saved["curves"], saved["method"]["held_out"], saved["optim"]["gamma"], saved["shared_order"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    config.claim(cfg, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=r"method.held_out: 0.0 / 0.5"):
        config.claim(dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, held_out=0.5)), tmp_path)


def test_impossible_settings_claim_nothing(tmp_path):
    with pytest.raises(ValueError, match="seeds = 0"):
        config.claim(tiny.train_config(seeds=0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["--config=configs/lff.py:colored_mnist"], "lff-colored_mnist"),
        (["--config=configs/lff.py:colored_mnist", "--config.data.dir=/x", "--config.eval.sets=val"], "lff-colored_mnist"),  # may change
        (["--config=configs/erm.py", "--config.seeds=2", "--config.optim.lr=5e-1"], "erm-shapes,optim.lr=0.5,seeds=2"),
        (["--config=configs/erm.py", "--config.init_from=runs/a:3"], "erm-shapes,init_from=runs_a_3"),
        (["--config=configs/erm.py", "--config.seeds=2", "--workdir=here"], None),
    ],
)
def test_the_default_workdir_names_file_data_and_what_was_given(monkeypatch, words, folder):
    monkeypatch.chdir(ROOT)
    assert command_line.parse(words).workdir == (pathlib.Path("runs") / folder if folder else pathlib.Path("here"))


@pytest.mark.parametrize(("seeds", "devices"), [(0, 1), (1, 1), (3, 3), (10, 10), (20, 10), (13, 1), (25, 5)])
def test_cpu_devices_divide_the_seeds(seeds, devices):
    assert parallel.cpu_devices(seeds) == devices


def test_a_saved_configuration_tells_which_corruptions_its_augmentation_resembles(tmp_path):
    cfg = dataclasses.replace(of_file("speckle").get_config("folder"), data=shapes.Config(augment=augment.Config(noise="speckle")))
    config.claim(cfg, tmp_path)
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["overlaps"] == ["gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"] and config.load(tmp_path) == cfg
    del kept["overlaps"]  # as former versions saved it
    (tmp_path / "config.json").write_text(json.dumps(kept))
    (tmp_path / "checkpoints").mkdir()
    config.claim(cfg, tmp_path)
    assert config.load(tmp_path) == cfg
