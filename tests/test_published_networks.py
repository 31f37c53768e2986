"""Published networks: their sizes and configurations, files of another layout, and the logits of other libraries."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxbed import command_line, config, method
from jaxbed.models import convert, dpn, resnet
from jaxbed.presets import published
from jaxbed.training import pretrained


def parameters(name):
    net, image = published.NETWORKS[name].net.make(1000), jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    params, _ = jax.eval_shape(functools.partial(method.init_net, net), jax.random.key(0), image)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


# torchvision's documentation; of the others, timm's table of results has millions with two digits, and Woo et al. (2018) 28.09 for CBAM
SIZES = {
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50_32x4d": 25_028_904,
    "resnext101_32x4d": 44_177_704,
    "resnext101_32x8d": 88_791_336,
    "se_resnet50": 28_088_024,
    "se_resnet101": 49_326_872,
    "se_resnet152": 66_821_848,
    "se_resnext101_32x4d": 48_955_416,
    "cbam_resnet50": 28_089_624,
}


DEEP = ("resnext101_32x4d", "se_resnet101", "se_resnet152")  # tracing takes a second; others have their options and their depth


@pytest.mark.parametrize(
    ("name", "expected"), [pytest.param(*row, marks=pytest.mark.slow if row[0] in DEEP else ()) for row in SIZES.items()]
)
def test_networks_have_the_published_number_of_parameters(name, expected):
    assert parameters(name) == expected


@pytest.mark.parametrize(
    ("name", "millions"), [("res2net50_v1b_26w_4s", 25.72), pytest.param("res2net101_v1b_26w_4s", 45.23, marks=pytest.mark.slow)]
)
def test_res2nets_have_the_published_millions_of_parameters(name, millions):
    """As in timm's table of results, which has two digits."""
    assert round(parameters(name) / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("array", "net", "message"),
    [
        ("layer0.conv1.weight", resnet.Config(gate="se"), "layout = caffe, and this run's has torchvision: give --config.net.layout=caffe"),
        (
            "conv1.weight",
            resnet.Config(layout="caffe"),
            "torchvision, and this run's has caffe: give --config.net.layout=torchvision",
        ),
        ("layer2.0.downsample.2.weight", resnet.Config(), "shortcut = mean, and this run's has conv: give --config.net.shortcut=mean"),
        ("conv1.weight", resnet.Config(shortcut="mean"), "shortcut = conv, and this run's has mean: give --config.net.shortcut=conv"),
        ("conv1.0.weight", resnet.Config(shortcut="mean"), "shortcut = conv, and this run's has mean: give --config.net.shortcut=conv"),
        ("0.0.weight", resnet.Config(shortcut="mean"), "shortcut = conv, and this run's has mean: give --config.net.shortcut=conv"),
        (
            "features.conv1_1.conv.weight",
            dpn.Config(68, "elu"),
            "last_activation = relu, and this run's has elu: give --config.net.last_activation=relu",
        ),
    ],
)
def test_what_names_say_of_a_network_and_shapes_do_not_is_compared(array, net, message, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({array: np.zeros(4 if "downsample" in array else (4, 3, 3, 3), np.float32)}, path)
    with pytest.raises(ValueError, match=message):
        pretrained.load(str(path), None, None, print, net=net)


@pytest.mark.parametrize("stem", ["imagenet", "deep", "small"])
@pytest.mark.parametrize("shortcut", ["conv", "mean"])
def test_names_of_every_resnet_say_its_shortcut(stem, shortcut, tmp_path):
    """Whatever its stem, and also where its first stage has none."""
    other = {"conv": "mean", "mean": "conv"}[shortcut]
    net, other_net = (resnet.Config(10, 4, stem=stem, shortcut=each) for each in (shortcut, other))
    image = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    trees = jax.eval_shape(functools.partial(method.init_net, net.make(7)), jax.random.key(0), image)
    path = tmp_path / "weights.safetensors"
    save_file(convert.to_torch(*jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), trees), shortcut), path)
    with pytest.raises(ValueError, match=f"shortcut = {shortcut}, and this run's has {other}: give --config.net.shortcut={shortcut}"):
        pretrained.load(str(path), None, None, print, net=other_net)


@pytest.mark.parametrize("name", published.NETWORKS)
def test_each_network_has_a_configuration(name):
    """With the scaling of its weights, and nothing that is not the network's."""
    cfg, row = command_line.load(f"network:{name}"), published.NETWORKS[name]
    config.check(dataclasses.replace(cfg, init_from="weights.pth"))
    assert cfg.net == row.net and (cfg.data.augment.mean, cfg.data.augment.std) == (row.mean, row.std)
    assert len(row.mean) == len(row.std) == 3 and all(0 < value < 1 for value in row.mean + row.std)


def test_other_names_of_networks_are_refused():
    with pytest.raises(ValueError, match="no published network 'resnet500': NAME in --config=network:NAME is one of resnet101, "):
        command_line.load("network:resnet500")


# (library, its name, ours); legacy_* are the networks of pretrainedmodels
LIBRARIES = [
    *(("torchvision.models", name, name) for name in ("resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d")),
    *(("timm", name, name) for name in ("resnext101_32x4d", "seresnet50", "seresnext50_32x4d")),
    *(("timm", f"legacy_{name.replace('_', '', 1)}", name) for name in ("se_resnet50", "se_resnet101", "se_resnext101_32x4d")),
    *(("timm", f"res2net{depth}d", f"res2net{depth}_v1b_26w_4s") for depth in (50, 101)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("library", "theirs", "ours"), LIBRARIES)
def test_libraries_give_the_same_logits(library, theirs, ours):
    """With random weights."""
    torch, library = pytest.importorskip("torch"), pytest.importorskip(library)
    torch.manual_seed(0)
    theirs = (getattr(library, theirs)() if hasattr(library, theirs) else library.create_model(theirs)).eval()
    for name, array in theirs.state_dict().items():  # as after training
        if array.ndim == 1 and name.endswith(("running_mean", "running_var", "weight")):
            array.copy_(torch.rand_like(array) / 2 + 0.75)
    image = np.random.default_rng(0).standard_normal((2, 224, 224, 3), np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(image.transpose(0, 3, 1, 2))).numpy()
    state = {name: array.numpy() for name, array in theirs.state_dict().items()}
    params, stats = (convert.from_cadene if "layer0.conv1.weight" in state else convert.from_torch)(state)
    net = published.NETWORKS[ours].net.make(1000)
    found = jax.jit(lambda params, stats: method.apply_net(net, params, stats, image, False)[0])(params, stats)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
