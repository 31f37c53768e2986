"""Vision Transformers: published numbers, the weights of timm and torchvision, arrays of seeds, and the methods that run on them."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
import tiny
from safetensors.numpy import save_file

from configs import vit_b16
from jaxbed import config
from jaxbed.data import shapes
from jaxbed.method import Info, apply_net, init_net
from jaxbed.models import torch_files, vit
from jaxbed.optim import Optim
from jaxbed.training import pretrained
from jaxbed.training.program import Run

SIDE_PX, PATCH_PX, WIDTH, HEADS, BLOCKS = 12, 4, 6, 2, 2
SMALL = shapes.Config(train_images=32, val_images=16, test_images=16)


@pytest.fixture
def short(monkeypatch):
    """Tiny with two narrow blocks."""
    monkeypatch.setitem(vit.SIZES, "tiny", (BLOCKS, WIDTH, HEADS))
    return lambda **changes: vit.Config("tiny", **{"side_px": SIDE_PX, "patch_px": PATCH_PX, **changes})


def shapes_of(net, side_px=SIDE_PX):
    return jax.eval_shape(functools.partial(init_net, net), jax.random.key(0), jax.ShapeDtypeStruct((1, side_px, side_px, 3), np.float32))


# ViT-B/16 counted by torchvision, the others by timm
@pytest.mark.parametrize(("size", "count"), [("tiny", 5_717_416), ("small", 22_050_664), ("base", 86_567_656)])
def test_sizes_have_the_published_number_of_parameters(size, count):
    params, stats = shapes_of(vit.Config(size).make(1000), 224)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
    assert not stats


def timm_state(pool="token", classes=7, side_px=SIDE_PX):
    """Random arrays with the names and shapes of a timm file, written down from its description."""
    state = {"cls_token": (1, 1, WIDTH), "pos_embed": (1, 1 + (side_px // PATCH_PX) ** 2, WIDTH)}

    def layer(name, *shape):
        state.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})

    layer("patch_embed.proj", WIDTH, 3, PATCH_PX, PATCH_PX)
    for block in (f"blocks.{i}" for i in range(BLOCKS)):
        layer(f"{block}.norm1", WIDTH)
        layer(f"{block}.attn.qkv", 3 * WIDTH, WIDTH)
        layer(f"{block}.attn.proj", WIDTH, WIDTH)
        layer(f"{block}.norm2", WIDTH)
        layer(f"{block}.mlp.fc1", 4 * WIDTH, WIDTH)
        layer(f"{block}.mlp.fc2", WIDTH, 4 * WIDTH)
    layer("norm" if pool == "token" else "fc_norm", WIDTH)
    layer("head", classes, WIDTH)
    rng = np.random.default_rng(0)
    return {name: (0.5 * rng.normal(size=shape) + (len(shape) == 1)).astype(np.float32) for name, shape in state.items()}


def torchvision_state(linear=("mlp.0", "mlp.3"), side_px=SIDE_PX):
    """The same under torchvision's names; `linear` are those of the two layers of an MLP, which have changed."""
    state = timm_state(side_px=side_px)
    outside = {"cls_token": "class_token", "pos_embed": "encoder.pos_embedding"}
    layers = {"patch_embed.proj": "conv_proj", "norm": "encoder.ln", "head": "heads.head"}
    outside |= {f"{ours}.{leaf}": f"{theirs}.{leaf}" for leaf in ("weight", "bias") for ours, theirs in layers.items()}
    inside = {"norm1": "ln_1", "attn.proj": "self_attention.out_proj", "norm2": "ln_2", "mlp.fc1": linear[0], "mlp.fc2": linear[1]}
    inside = {f"{ours}.{leaf}": f"{theirs}.{leaf}" for leaf in ("weight", "bias") for ours, theirs in inside.items()}
    inside |= {f"attn.qkv.{leaf}": f"self_attention.in_proj_{leaf}" for leaf in ("weight", "bias")}
    names = {f"blocks.{i}.{a}": f"encoder.layers.encoder_layer_{i}.{b}" for i in range(BLOCKS) for a, b in inside.items()}
    return {(names | outside)[name]: array for name, array in state.items()}


def reference(state, image):
    """The network from timm's arrays in float64 NumPy, head by head: image [N, 3, H, W] -> logits."""
    state = {name: np.asarray(array, np.float64) for name, array in state.items()}

    def linear(x, name, rows=slice(None)):
        return x @ state[f"{name}.weight"][rows].T + state[f"{name}.bias"][rows]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * state[f"{name}.weight"] + state[f"{name}.bias"]

    def attention(x, name):
        size, heads = WIDTH // HEADS, []
        for head in range(HEADS):
            query, key, value = (linear(x, f"{name}.qkv", slice(i * WIDTH + head * size, i * WIDTH + (head + 1) * size)) for i in range(3))
            shares = np.exp(query @ key.swapaxes(1, 2) / math.sqrt(size))
            heads.append(shares / shares.sum(-1, keepdims=True) @ value)
        return linear(np.concatenate(heads, -1), f"{name}.proj")

    kernel, starts = state["patch_embed.proj.weight"], range(0, image.shape[2], PATCH_PX)
    patches = [image[:, :, i : i + PATCH_PX, j : j + PATCH_PX] for i in starts for j in starts]
    x = np.stack([np.einsum("nchw,fchw->nf", patch, kernel) for patch in patches], 1) + state["patch_embed.proj.bias"]
    x = np.concatenate([np.repeat(state["cls_token"], len(x), 0), x], 1) + state["pos_embed"]
    for block in (f"blocks.{i}" for i in range(BLOCKS)):
        x = x + attention(norm(x, f"{block}.norm1"), f"{block}.attn")
        y = linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1")
        x = x + linear(y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2))), f"{block}.mlp.fc2")
    pooled = norm(x, "norm")[:, 0] if "norm.weight" in state else norm(x[:, 1:].mean(1), "fc_norm")
    return linear(pooled, "head")


def images(count=2, seed=1):
    return np.random.default_rng(seed).standard_normal((count, SIDE_PX, SIDE_PX, 3), np.float32)


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_timms_weights_give_timms_logits(short, pool):
    """Against another implementation, two seeds in an array, in parts: the head reads what the trunk gives."""
    cfg, states = short(pool=pool), [timm_state(pool), {name: 1.1 * array for name, array in timm_state(pool).items()}]
    trees = [vit.from_torch(state)[0] for state in states]
    assert jax.tree.map(np.shape, trees[0]) == jax.tree.map(lambda x: x.shape, shapes_of(cfg.make(7))[0])
    trunk, head = cfg.make(7, last=1), cfg.make(7, first=1)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def logits(params, image):
        vectors = apply_net(trunk, {name: tree for name, tree in params.items() if name != "head"}, {}, image, False)[0]
        assert vectors.shape == (2, WIDTH) and vectors.dtype == np.float32
        return apply_net(cfg.make(7), params, {}, image, False)[0], apply_net(head, {"head": params["head"]}, {}, vectors, False)[0]

    whole, in_parts = logits(jax.tree.map(lambda *leaves: np.stack(leaves), *trees), images())
    expected = [reference(state, images().transpose(0, 3, 1, 2)) for state in states]
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(in_parts, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("linear", [("mlp.0", "mlp.3"), ("mlp.linear_1", "mlp.linear_2")])
def test_torchvisions_names_give_the_same_parameters(linear):
    jax.tree.map(np.testing.assert_array_equal, *(vit.from_torch(state)[0] for state in (timm_state(), torchvision_state(linear))))


FOREIGN = ("dist_token", "blocks.0.ls1.gamma", "blocks.0.attn.in_proj_weight", "norm.running_mean", "encoder.layers.0.ln_1.weight")


@pytest.mark.parametrize("name", [*FOREIGN, "head_dist.weight", "norm_pre.weight", "patch_embed.weight", "pos_embed.weight"])
def test_other_names_are_an_error(name):
    with pytest.raises(ValueError, match=f"weights: '{name}' is no array of a ViT"):
        vit.from_torch({name: np.zeros(3, np.float32)})


def test_two_networks_under_two_kinds_of_names_are_an_error():
    with pytest.raises(ValueError, match="weights: 'class_token' is there under another name too"):
        vit.from_torch({**timm_state(), **torchvision_state()})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_of_seeds_are_products_of_matrices(short, dtype):
    """Mapped over parameters, forward and backward: no convolution, true float32, and logits in float32."""
    net = short(dtype=dtype).make(7)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), shapes_of(net)[0])

    def loss(params, image):
        logits = apply_net(net, params, {}, image, True)[0]
        assert logits.dtype == np.float32
        return logits.sum()

    lowered = jax.jit(jax.vmap(jax.grad(loss), in_axes=(0, None))).lower(params, images())
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(lowered.out_info))
    products = [line for line in lowered.as_text().splitlines() if "stablehlo.dot_general" in line]
    assert "stablehlo.convolution" not in lowered.as_text()
    assert len(products) > 3 * 6 * BLOCKS and all("precision = [HIGHEST, HIGHEST]" in line for line in products)


def test_images_of_another_side_are_an_error(short):
    with pytest.raises(ValueError, match=r"net\.side_px = 12: images have 16 x 16 px; set it to the side of square images"):
        shapes_of(short().make(3), 16)
    with pytest.raises(ValueError, match=r"net\.side_px = 30: must be a multiple of net\.patch_px = 16"):
        vit.Config(side_px=30).make(3)


BATCH, INFO = 16, Info(classes=7, train_size=64, steps_per_epoch=4, epochs=2)


@pytest.mark.parametrize("method", ["lff", "disent", "dfr", "end", "lnl", "hex", "softcon"])
def test_methods_that_need_features_run(short, method):
    """One step keeps the shapes of the whole state: traced, not compiled."""
    made = tiny.METHODS[method].make(INFO, short(), Optim())
    batch = {name: jax.ShapeDtypeStruct((BATCH,), np.int32) for name in ("label", "index", "bias")}
    batch |= {"image": jax.ShapeDtypeStruct((BATCH, SIDE_PX, SIDE_PX, 3), np.float32)}
    batch |= {"biased_direction": jax.ShapeDtypeStruct((BATCH, 8), np.float32)}
    key = jax.eval_shape(jax.random.key, 0)
    state = jax.eval_shape(made.init, key, batch)
    after, _ = jax.eval_shape(made.step, state, batch, key)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


@pytest.mark.parametrize("method", ["sagnet", "rsc", "debiased", "mixstyle", "padain", "infodrop"])
def test_methods_that_need_maps_say_so(method):
    with pytest.raises(ValueError, match=r"cannot run on jaxbed.models.vit, which has no "):
        tiny.METHODS[method].make(INFO, vit.Config(), Optim())


def loaded(cfg, said):
    """The parameters of the file; of all others only the shapes."""
    program = tiny.program(cfg, trains=False)
    return pretrained.load(cfg.init_from, program, Run(program.state, alive=None, sums={}), said.append).state.params["net"]


@pytest.mark.parametrize("make", [timm_state, torchvision_state])
def test_networks_start_from_a_file(short, make, tmp_path):
    path, said, state = tmp_path / "vit.safetensors", [], make(side_px=32)
    save_file(state, path)
    cfg = tiny.train_config(net=short(side_px=32), data=SMALL, init_from=str(path))
    params, expected = loaded(cfg, said), vit.from_torch(state)[0]
    for name in set(params) - {"head"}:
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.stack([b, b])), params[name], expected[name])
    assert said[0].endswith("newly initialised: net/head/bias, net/head/kernel")  # of 7 classes in the file


def test_a_backbone_gets_its_head_from_a_second_file(short, tmp_path):
    """As DINO's weights are published, under either kind of names."""
    said, bodies = [], [make(side_px=32) for make in (timm_state, torchvision_state)]
    head = {leaf: np.random.default_rng(0).standard_normal(shape, np.float32) for leaf, shape in (("weight", (16, WIDTH)), ("bias", (16,)))}
    save_file({f"module.linear.{leaf}": array for leaf, array in head.items()}, tmp_path / "head.safetensors")
    for body in bodies:
        save_file({name: array for name, array in body.items() if "head" not in name}, tmp_path / "body.safetensors")
        source = f"{tmp_path}/body.safetensors+{tmp_path}/head.safetensors"
        params = loaded(tiny.train_config(net=short(side_px=32), data=SMALL, init_from=source), said)
        np.testing.assert_array_equal(params["head"]["kernel"], np.stack([head["weight"].T] * 2))
        assert said.pop() == f"starting from {source}"


@pytest.mark.parametrize(
    ("pool", "side_px", "message"),
    [
        ("mean", 32, r"top_norm/\w+ is \[6\] here and the file lacks it"),
        ("token", 12, r"stem_position is \[65, 6\] here and the file has \[10, 6\]"),
    ],
)
def test_files_of_another_network_are_refused(short, pool, side_px, message, tmp_path):
    path = tmp_path / "vit.safetensors"
    save_file(timm_state(pool, side_px=side_px), path)
    with pytest.raises(ValueError, match=message):
        loaded(tiny.train_config(net=short(side_px=32), data=SMALL, init_from=str(path)), [])


def test_the_config_asks_for_a_file():
    cfg = vit_b16.get_config()
    with pytest.raises(ValueError, match="epochs = 0: nothing is trained, so init_from must name weights"):
        config.check(cfg)
    config.check(dataclasses.replace(cfg, init_from="vit_b_16.pth"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torchvision", "timm", "timm, mean"])
def test_libraries_give_the_same_logits(kind, tmp_path):
    """A library's ViT-B/16 with random weights, saved by torch.save and read by our reader."""
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("torchvision.models" if kind == "torchvision" else "timm")
    pool, torch_pool = ("mean", "avg") if kind.endswith("mean") else ("token", "token")
    torch.manual_seed(0)
    if kind == "torchvision":
        theirs = library.vit_b_16().eval()
    else:
        theirs = library.create_model("vit_base_patch16_224", global_pool=torch_pool).eval()
    for array in theirs.state_dict().values():  # as after training: no zeros, no ones
        array.add_(0.02 * torch.randn_like(array))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    image = np.random.default_rng(0).standard_normal((2, 224, 224, 3), np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(image.transpose(0, 3, 1, 2))).numpy()
    net, (params, stats) = vit.Config(pool=pool).make(1000), vit.from_torch(torch_files.read(tmp_path / "vit.pth"))
    found = jax.jit(lambda params: apply_net(net, params, stats, image, False)[0])(params)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
