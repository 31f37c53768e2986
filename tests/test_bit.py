"""BiT: its published size, its npz files against NumPy, and runs that start from one."""

import functools

import jax
import numpy as np
import published_resnets as made_up
import pytest
import tiny

from jaxbed import config, method
from jaxbed.data import shapes
from jaxbed.models import bit, torch_files
from jaxbed.training import pretrained
from jaxbed.training.program import Run

WIDTH, CLASSES = 32, 7
IMAGE = np.random.default_rng(1).standard_normal((2, made_up.SIDE_PX, made_up.SIDE_PX, 3), np.float32)
SMALL = shapes.Config(train_images=32, val_images=16, test_images=16)


@pytest.fixture
def shallow(monkeypatch):
    """Three blocks: with a shortcut, with a shortcut that halves, without."""
    monkeypatch.setitem(bit.BLOCKS, 50, made_up.BLOCKS)


def shapes_of(net):
    image = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    return jax.eval_shape(functools.partial(method.init_net, net), jax.random.key(0), image)


def test_it_has_the_published_number_of_parameters():
    """For 1,000 classes; timm's table of results has 25.55 million."""
    params, stats = shapes_of(bit.Config().make(1000))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 25_549_352
    assert not stats


def state(classes=CLASSES):
    """Random arrays with the names and shapes of a published file."""
    shapes, inputs = {"resnet/root_block/standardized_conv2d/kernel": (7, 7, 3, WIDTH)}, WIDTH

    def norm(at, features):
        shapes.update({f"{at}/group_norm/gamma": (features,), f"{at}/group_norm/beta": (features,)})

    for stage, count in enumerate(made_up.BLOCKS, start=1):
        inner, out = WIDTH * 2 ** (stage - 1), 4 * WIDTH * 2 ** (stage - 1)
        for i in range(count):
            at = f"resnet/block{stage}/unit{i + 1:02d}"
            for letter, kernel, before, after in (("a", 1, inputs, inner), ("b", 3, inner, inner), ("c", 1, inner, out)):
                norm(f"{at}/{letter}", before)
                shapes[f"{at}/{letter}/standardized_conv2d/kernel"] = (kernel, kernel, before, after)
            if inputs != out:
                shapes[f"{at}/a/proj/standardized_conv2d/kernel"] = (1, 1, inputs, out)
            inputs = out
    norm("resnet", inputs)
    shapes |= {"resnet/head/conv2d/kernel": (1, 1, inputs, classes), "resnet/head/conv2d/bias": (classes,)}
    return made_up.arrays(shapes)


def answer(state):
    """Logits of IMAGE in float64 NumPy, image by image and group by group."""
    state = {name: np.asarray(array, np.float64) for name, array in state.items()}

    def conv(x, at, stride=1):
        kernel = state[f"{at}/standardized_conv2d/kernel"]
        columns = [(column - column.mean()) / column.std() for column in np.moveaxis(kernel, -1, 0)]
        return made_up.conv(x, np.stack(columns).transpose(0, 3, 1, 2), stride)

    def norm(x, at):
        images = []
        for image in x:
            groups = [(group - group.mean()) / np.sqrt(group.var() + 1e-5) for group in np.split(image, 32)]
            images.append(np.concatenate(groups))
        scale, bias = (state[f"{at}/group_norm/{leaf}"][:, None, None] for leaf in ("gamma", "beta"))
        return made_up.relu(np.stack(images) * scale + bias)

    x = conv(IMAGE.transpose(0, 3, 1, 2), "resnet/root_block", 2)
    x = made_up.windows(made_up.padded(x, 1, 1), 3, 2).max((4, 5))
    for stage, count in enumerate(made_up.BLOCKS, start=1):
        for i in range(count):
            at, stride = f"resnet/block{stage}/unit{i + 1:02d}", 2 if stage > 1 and i == 0 else 1
            y = norm(x, f"{at}/a")
            if i == 0:
                x = conv(y, f"{at}/a/proj", stride)
            y = conv(norm(conv(y, f"{at}/a"), f"{at}/b"), f"{at}/b", stride)
            x = x + conv(norm(y, f"{at}/c"), f"{at}/c")
    return norm(x, "resnet").mean((2, 3)) @ state["resnet/head/conv2d/kernel"][0, 0] + state["resnet/head/conv2d/bias"]


def test_published_weights_give_the_logits_of_another_implementation(shallow, tmp_path):
    """Two seeds in an array, in two parts, read from npz files."""
    states = [state(), {name: array + 0.1 for name, array in state().items()}]
    trees = []
    for i, each in enumerate(states):
        np.savez(tmp_path / f"{i}.npz", **each)
        trees.append(bit.from_npz(torch_files.read(tmp_path / f"{i}.npz"))[0])
    cfg = bit.Config(width=WIDTH)
    assert jax.tree.map(np.shape, trees[0]) == jax.tree.map(lambda x: x.shape, shapes_of(cfg.make(CLASSES))[0])
    head, trunk = cfg.make(CLASSES, first=5), cfg.make(CLASSES, last=5)

    @jax.jit
    @jax.vmap
    def logits(params):
        maps = method.apply_net(trunk, {name: tree for name, tree in params.items() if name != "head"}, {}, IMAGE, False)[0]
        return method.apply_net(head, {"head": params["head"]}, {}, maps.mean((1, 2)), False)[0]

    found = logits(jax.tree.map(lambda *leaves: np.stack(leaves), *trees))
    np.testing.assert_allclose(found, [answer(each) for each in states], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "name", ["root_block/standardized_conv2d/kernel", "resnet/block5/unit01/a/group_norm/gamma", "resnet/block1/unit01/d/group_norm/gamma"]
)
def test_foreign_names_are_an_error(name):
    with pytest.raises(ValueError, match=f"weights: '{name}' is no array of a BiT"):
        bit.from_npz({name: np.zeros(3, np.float32)})


def test_a_width_without_groups_is_refused():
    with pytest.raises(ValueError, match=r"net\.width = 48: must be a multiple of 32, the groups of GroupNorm"):
        bit.Config(width=48).make(7)


def loaded(net, path, said, trains=True):
    """The parameters of the file; of all others only the shapes."""
    program = tiny.program(tiny.train_config(net=net, data=SMALL, init_from=str(path)), trains=False)
    run = Run(program.state, alive=None, sums={})
    return pretrained.load(str(path), program, run, said.append, net=net, trains=trains).state.params["net"]


def test_runs_start_from_a_file(shallow, tmp_path):
    """A head of other classes is drawn anew where it is trained; another network's file, and a damaged one, are refused."""
    path, said = tmp_path / "bit.npz", []
    np.savez(path, **state())
    net = bit.Config(width=WIDTH)
    config.check(tiny.train_config(net=net, data=SMALL, init_from=str(path)))
    params = loaded(net, path, said)
    kernel = state()["resnet/block2/unit02/b/standardized_conv2d/kernel"]
    np.testing.assert_array_equal(params["stage2_block1"]["conv2"]["kernel"], np.stack([kernel] * 2))
    assert said == [f"starting from {path}; newly initialised: net/head/bias, net/head/kernel"]
    with pytest.raises(ValueError, match=r"head/bias is \[16\] here and the file has \[7\], and epochs = 0 trains nothing: name a file"):
        loaded(net, path, said, trains=False)
    with pytest.raises(ValueError, match=r"bit\.npz: stage2_block0/conv1/kernel is \[.*\] here and the file has \[.*\]: another net"):
        loaded(tiny.RESNET_4, path, said)
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"cut\.npz is damaged .*: take the file as it was published"):
        torch_files.read(tmp_path / "cut.npz")


@pytest.mark.slow
def test_timm_gives_the_same_logits():
    """timm's network with random weights, under the names of the authors' files."""
    torch, timm = pytest.importorskip("torch"), pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs = timm.create_model("resnetv2_50x1_bit", num_classes=1000).eval()
    for array in theirs.state_dict().values():  # as after training: no zeros, no ones
        array.add_(0.02 * torch.randn_like(array))
    leaves, renamed = {"weight": "gamma", "bias": "beta"}, {}
    for name, array in theirs.state_dict().items():
        layer, _, leaf = name.rpartition(".")
        words = layer.split(".")
        at = f"resnet/block{int(words[1]) + 1}/unit{int(words[3]) + 1:02d}/" if words[0] == "stages" else "resnet/"
        kernel = np.ascontiguousarray(array.numpy().transpose(2, 3, 1, 0)) if array.ndim == 4 else array.numpy()
        if words[0] == "head":
            renamed[f"resnet/head/conv2d/{'kernel' if leaf == 'weight' else 'bias'}"] = kernel
        elif "norm" in words[-1]:
            letter = f"{'abc'[int(words[-1][-1]) - 1]}/" if words[0] == "stages" else ""
            renamed[f"{at}{letter}group_norm/{leaves[leaf]}"] = kernel
        else:
            place = "root_block" if words[0] == "stem" else "a/proj" if "downsample" in words else "abc"[int(words[-1][-1]) - 1]
            renamed[f"{at}{place}/standardized_conv2d/kernel"] = kernel
    image = np.random.default_rng(0).standard_normal((2, 224, 224, 3), np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(image.transpose(0, 3, 1, 2))).numpy()
    net, params = bit.Config().make(1000), bit.from_npz(renamed)[0]
    found = jax.jit(lambda params: method.apply_net(net, params, {}, image, False)[0])(params)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
