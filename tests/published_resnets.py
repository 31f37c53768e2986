"""Made-up files of ResNets under their published names, and what such a network answers, in NumPy: for tests of networks."""

import itertools
from collections.abc import Iterator

import numpy as np

WIDTH, CLASSES, SIDE_PX = 8, 7, 19  # an odd side: windows are cut off at the edge
BLOCKS = (1, 2, 0, 0)
STEM = ((3, 4, 2), (4, 4, 1), (4, WIDTH, 1))  # inputs, features, stride of a deep one


def arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """As after training: no zeros, no ones, positive variances."""
    rng = np.random.default_rng(0)
    values = {}
    for name, shape in shapes.items():
        positive = name.endswith("running_var") or (len(shape) == 1 and name.endswith(("weight", "gamma")))
        scale = 1 if len(shape) == 1 else np.prod(shape[1:] if "kernel" not in name else shape[:-1]) ** -0.5
        values[name] = (rng.uniform(0.5, 1.5, shape) if positive else scale * rng.normal(size=shape)).astype(np.float32)
    return values


def norm_shapes(name: str, features: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{leaf}": (features,) for leaf in ("weight", "bias", "running_mean", "running_var")}


def state(middle: int, groups: int = 1, scales: int = 1, gate: str = "", deep: bool = False) -> dict[str, np.ndarray]:
    """A bottleneck ResNet of torchvision's names; middle: channels of the 3 x 3 convolution of the first stage, of one scale."""
    shapes: dict[str, tuple[int, ...]] = {}
    if deep:
        for i, (inputs, features, _) in enumerate(STEM):
            shapes[f"conv1.{3 * i}.weight"] = (features, inputs, 3, 3)
            shapes |= norm_shapes("bn1" if i == 2 else f"conv1.{3 * i + 1}", features)
    else:
        shapes |= {"conv1.weight": (WIDTH, 3, 7, 7), **norm_shapes("bn1", WIDTH)}
    inputs = WIDTH
    for stage, count in enumerate(BLOCKS, start=1):
        inner, out = middle * 2 ** (stage - 1), 4 * WIDTH * 2 ** (stage - 1)
        for i in range(count):
            at = f"layer{stage}.{i}"
            shapes |= {f"{at}.conv1.weight": (inner * scales, inputs, 1, 1), **norm_shapes(f"{at}.bn1", inner * scales)}
            places = [("conv2", "bn2")] if scales == 1 else [(f"convs.{j}", f"bns.{j}") for j in range(scales - 1)]
            for conv, norm in places:
                shapes |= {f"{at}.{conv}.weight": (inner, inner // groups, 3, 3), **norm_shapes(f"{at}.{norm}", inner)}
            shapes |= {f"{at}.conv3.weight": (out, inner * scales, 1, 1), **norm_shapes(f"{at}.bn3", out)}
            if inputs != out:
                first = 1 if deep else 0
                shapes |= {f"{at}.downsample.{first}.weight": (out, inputs, 1, 1), **norm_shapes(f"{at}.downsample.{first + 1}", out)}
            if gate == "se":
                shapes |= {f"{at}.se.fc1.weight": (8, out, 1, 1), f"{at}.se.fc1.bias": (8,)}
                shapes |= {f"{at}.se.fc2.weight": (out, 8, 1, 1), f"{at}.se.fc2.bias": (out,)}
            if gate == "cbam":
                mlp, spatial = f"{at}.cbam.ChannelGate.mlp", f"{at}.cbam.SpatialGate.spatial"
                shapes |= {f"{mlp}.1.weight": (8, out), f"{mlp}.1.bias": (8,), f"{mlp}.3.weight": (out, 8), f"{mlp}.3.bias": (out,)}
                shapes |= {f"{spatial}.conv.weight": (1, 2, 7, 7), **norm_shapes(f"{spatial}.bn", 1)}
            inputs = out
    return arrays({**shapes, "fc.weight": (CLASSES, inputs), "fc.bias": (CLASSES,)})


def cadene(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same under the names of pretrainedmodels."""
    renamed = {}
    for name, array in state.items():
        theirs = name.replace(".se.", ".se_module.")
        if name.startswith(("conv1", "bn1")):
            theirs = f"layer0.{name}"
        renamed[theirs.replace("fc.", "last_linear.") if name.startswith("fc") else theirs] = array
    return renamed


def windows(x: np.ndarray, size: int, stride: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]


def padded(x: np.ndarray, before: int, after: int, value: float = 0.0) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (before, after), (before, after)), constant_values=value)


def conv(x: np.ndarray, kernel: np.ndarray, stride: int = 1, groups: int = 1) -> np.ndarray:
    """Group after group: x [N, C, H, W], kernel [F, C / groups, k, k]."""
    pad = (kernel.shape[2] - 1) // 2
    seen = windows(padded(x, pad, pad), kernel.shape[2], stride)
    parts = zip(np.split(seen, groups, axis=1), np.split(kernel, groups), strict=True)
    return np.concatenate([np.einsum("nchwij,fcij->nfhw", *part) for part in parts], axis=1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def batch_norm(state: dict[str, np.ndarray], name: str, x: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    scale, bias, mean, var = (state[f"{name}.{leaf}"][:, None, None] for leaf in ("weight", "bias", "running_mean", "running_var"))
    return (x - mean) / np.sqrt(var + epsilon) * scale + bias


def gated(state: dict[str, np.ndarray], at: str, x: np.ndarray) -> np.ndarray:
    def mlp(vectors: np.ndarray, first: str, second: str) -> np.ndarray:
        for name, activation in ((first, relu), (second, np.asarray)):
            kernel = state[f"{at}.{name}.weight"]
            vectors = activation(vectors @ kernel.reshape(kernel.shape[:2]).T + state[f"{at}.{name}.bias"])
        return vectors

    if f"{at}.se.fc1.weight" in state:
        return x * sigmoid(mlp(x.mean((2, 3)), "se.fc1", "se.fc2"))[:, :, None, None]
    if f"{at}.cbam.ChannelGate.mlp.1.weight" in state:
        layers, spatial = ("cbam.ChannelGate.mlp.1", "cbam.ChannelGate.mlp.3"), f"{at}.cbam.SpatialGate.spatial"
        x = x * sigmoid(mlp(x.mean((2, 3)), *layers) + mlp(x.max((2, 3)), *layers))[:, :, None, None]
        seen = np.stack([x.max(1), x.mean(1)], axis=1)
        return x * sigmoid(batch_norm(state, f"{spatial}.bn", conv(seen, state[f"{spatial}.conv.weight"])))
    return x


def answer(state: dict[str, np.ndarray], image: np.ndarray, groups: int = 1, scales: int = 1, caffe: bool = False) -> np.ndarray:
    """Logits [N, CLASSES] of image [N, H, W, 3], from torchvision's names, in float64."""
    state = {name: np.asarray(array, np.float64) for name, array in state.items()}
    x = image.transpose(0, 3, 1, 2).astype(np.float64)
    if "conv1.weight" in state:
        x = conv(x, state["conv1.weight"], 2)
    else:
        for i, (_, _, stride) in enumerate(STEM):
            x = conv(x, state[f"conv1.{3 * i}.weight"], stride)
            x = x if i == 2 else relu(batch_norm(state, f"conv1.{3 * i + 1}", x))
    x = relu(batch_norm(state, "bn1", x))
    # Caffe's windows begin at the first pixel, and the last may reach beyond the edge
    x = windows(padded(x, 0, x.shape[2] % 2 == 0, -np.inf) if caffe else padded(x, 1, 1, -np.inf), 3, 2).max((4, 5))
    for stage, i in itertools.product(range(1, 5), range(max(BLOCKS))):
        if f"layer{stage}.{i}.conv1.weight" in state:
            x = _block(state, f"layer{stage}.{i}", x, 2 if stage > 1 and i == 0 else 1, i == 0, groups, scales, caffe)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def _block(
    state: dict[str, np.ndarray], at: str, x: np.ndarray, stride: int, first: bool, groups: int, scales: int, caffe: bool
) -> np.ndarray:
    early = stride if caffe and groups == 1 else 1
    y = relu(batch_norm(state, f"{at}.bn1", conv(x, state[f"{at}.conv1.weight"], early)))
    if scales == 1:
        y = relu(batch_norm(state, f"{at}.bn2", conv(y, state[f"{at}.conv2.weight"], stride // early, groups)))
    else:
        y = np.concatenate(list(_scales(state, at, np.split(y, scales, axis=1), stride, first)), axis=1)
    y = gated(state, at, batch_norm(state, f"{at}.bn3", conv(y, state[f"{at}.conv3.weight"])))
    if f"{at}.downsample.2.weight" in state:  # means of 2 x 2, of what there is at the edge
        x = x if stride == 1 else np.nanmean(windows(padded(x, 0, x.shape[2] % 2, np.nan), 2, 2), (4, 5))
        x = batch_norm(state, f"{at}.downsample.2", conv(x, state[f"{at}.downsample.1.weight"]))
    elif f"{at}.downsample.1.weight" in state:
        x = batch_norm(state, f"{at}.downsample.1", conv(x, state[f"{at}.downsample.0.weight"], stride))
    return relu(x + y)


def _scales(state: dict[str, np.ndarray], at: str, parts: list[np.ndarray], stride: int, first: bool) -> Iterator[np.ndarray]:
    """Equation 1 of Gao et al. (2019), from the second branch on; the published order passes on the last part."""
    before = np.float64(0)
    for i, part in enumerate(parts[:-1]):
        y = relu(batch_norm(state, f"{at}.bns.{i}", conv(part + before, state[f"{at}.convs.{i}.weight"], stride)))
        before = np.float64(0) if first else y
        yield y
    yield windows(padded(parts[-1], 1, 1), 3, stride).mean((4, 5)) if first else parts[-1]
