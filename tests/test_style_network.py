"""AdaIN's style network against plain NumPy, and the script that converts and trains its weights."""

import functools
import importlib.util
import re

import jax
import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from safetensors.numpy import save_file

from jaxbed.data import shapes
from jaxbed.models import style, style_network, torch_files
from jaxbed.models.style_network import Config

spec = importlib.util.spec_from_file_location("prepare_style_network", ROOT / "data_prep" / "style_network.py")
prepare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prepare)

WIDTH = 2
# place in the published files' lists: (inputs, outputs) in widths, 0 being the three colours
ENCODER = {2: (0, 1), 5: (1, 1), 9: (1, 2), 12: (2, 2), 16: (2, 4), 19: (4, 4), 22: (4, 4), 25: (4, 4), 29: (4, 8)}
DECODER = {1: (8, 4), 5: (4, 4), 8: (4, 4), 11: (4, 4), 14: (4, 2), 18: (2, 2), 21: (2, 1), 25: (1, 1), 28: (1, 0)}
POOLED, KEPT, DOUBLED = (9, 16, 29), (2, 9, 16, 29), (1, 14, 21)


def state_dict(convolutions, rng, width=WIDTH):
    """Random weights under the published names."""
    state = {}
    for place, ends in convolutions.items():
        inputs, outputs = (width * end or 3 for end in ends)
        state[f"{place}.weight"] = rng.normal(size=(outputs, inputs, 3, 3), scale=(9 * inputs) ** -0.5).astype(np.float32)
        state[f"{place}.bias"] = rng.normal(size=outputs, scale=0.3).astype(np.float32)
    return state


def both_states(width=WIDTH):
    rng = np.random.default_rng(0)
    colours = {"0.weight": rng.normal(size=(3, 3, 1, 1)).astype(np.float32), "0.bias": rng.normal(size=3).astype(np.float32)}
    return colours | state_dict(ENCODER, rng, width), state_dict(DECODER, rng, width)


def converted(width=WIDTH):
    encoder, decoder = both_states(width)
    return {"encoder": style_network.encoder_from_torch(encoder), "decoder": style_network.decoder_from_torch(decoder)}


def convolved(state, place, x):
    """[N, C, H, W] in float64."""
    weight, bias = (state[f"{place}.{name}"].astype(np.float64) for name in ("weight", "bias"))
    reach = weight.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    return np.einsum("ncyxij,fcij->nfyx", windows, weight) + bias[:, None, None]


def encoded(state, image):
    """All maps that are kept, [N, C, h, w]."""
    x, kept = convolved(state, 0, image.astype(np.float64).transpose(0, 3, 1, 2)), []
    for place in ENCODER:
        if place in POOLED:
            height, width = (-(-side // 2) for side in x.shape[2:])
            x = np.stack([[x[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((2, 3)) for j in range(width)] for i in range(height)])
            x = x.transpose(2, 3, 0, 1)
        x = np.maximum(convolved(state, place, x), 0)
        if place in KEPT:
            kept.append(x)
    return kept


def decoded(state, x):
    for place in DECODER:
        x = convolved(state, place, x)
        x = x if place == 28 else np.maximum(x, 0)
        x = x.repeat(2, axis=2).repeat(2, axis=3) if place in DOUBLED else x
    return x.transpose(0, 2, 3, 1)


def images(*shape, seed=1):
    return np.random.default_rng(seed).random((*shape, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("sides", "backend"),
    [((17, 21), "cpu"), ((17, 22), "gpu"), pytest.param((16, 24), "cpu", marks=pytest.mark.slow)],
)
def test_both_halves_are_the_published_network(monkeypatch, sides, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)  # which decides the form of the first convolution
    encoder, decoder = both_states()
    network, image, expected = Config(width=WIDTH), images(2, *sides), encoded(encoder, images(2, *sides))

    @jax.jit
    def both_halves(params, image):
        maps = network.maps(params, image)
        return maps, network.encode(params, image), network.decode(params, maps[-1])

    maps, features, output = both_halves(converted(), image)
    for a, b in zip(maps, expected, strict=True):
        np.testing.assert_allclose(a, b.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(features, maps[-1])
    assert features.shape == (2, -(-sides[0] // 8), -(-sides[1] // 8), 8 * WIDTH)
    np.testing.assert_allclose(output, decoded(decoder, expected[-1]), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: jaxbed does not need it")
@pytest.mark.parametrize("side", [24, 33])
def test_both_halves_are_pytorchs(side):
    import torch
    from torch import nn

    states, modules = both_states(), []
    for state, convolutions in zip(states, (ENCODER, DECODER), strict=True):
        layers = [nn.Conv2d(3, 3, 1)] if "0.weight" in state else []
        for place in convolutions:
            layers += [nn.MaxPool2d(2, ceil_mode=True)] if layers and place in POOLED and convolutions is ENCODER else []
            layers += [nn.ReflectionPad2d(1), nn.Conv2d(*state[f"{place}.weight"].shape[1::-1], 3)]
            layers += [nn.ReLU()] if place != 28 else []
            layers += [nn.Upsample(scale_factor=2)] if place in DOUBLED and convolutions is DECODER else []
        modules.append(nn.Sequential(*layers))
        modules[-1].load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    image, network, params = images(2, side, side), Config(width=WIDTH), converted()
    with torch.no_grad():
        features = modules[0](torch.from_numpy(image).permute(0, 3, 1, 2))
        decoded = modules[1](features)
    found = network.encode(params, image)
    np.testing.assert_allclose(found, features.permute(0, 2, 3, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(network.decode(params, found), decoded.permute(0, 2, 3, 1), rtol=1e-5, atol=1e-6)


def test_published_sizes():
    network = Config()
    params = jax.eval_shape(lambda: style_network.draw(64, 4))
    for side, features, image in ((224, 28, 224), (158, 20, 160), (112, 14, 112)):
        found = jax.eval_shape(network.encode, params, jax.ShapeDtypeStruct((1, side, side, 3), np.float32))
        assert found.shape == (1, features, features, 512)
        assert jax.eval_shape(network.decode, params, found).shape == (1, image, image, 3)
    counts = {half: sum(array.size for array in jax.tree.leaves(tree)) for half, tree in params.items()}
    assert counts == {"encoder": 3_505_740, "decoder": 3_505_219}


def test_bfloat16_rounds_and_nothing_else():
    params, image = style_network.draw(4, 2), images(2, 16, 16)
    wide, half = Config(width=4, stages=2), Config(width=4, stages=2, dtype="bfloat16")

    @jax.jit
    def both(params, image):
        features = half.encode(params, image)
        return features, half.decode(params, features), wide.decode(params, wide.encode(params, image))

    features, decoded, exact = jax.device_get(both(params, image))
    assert features.dtype == decoded.dtype == np.dtype("bfloat16")
    assert 0 < np.abs(np.float32(decoded) - exact).max() < 0.05 * np.abs(exact).max()


def test_seeds_do_not_become_groups():
    network = Config(width=4, stages=2)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(style_network.draw(4, 2, seed) for seed in range(3)))

    def whole(params, image):
        return network.decode(params, network.encode(params, image))

    image, one = images(3, 2, 16, 16), jax.jit(whole)
    lowered = jax.jit(jax.vmap(whole)).lower(stacked, image)
    text = lowered.as_text()
    assert "stablehlo.convolution" in text and set(re.findall(r"feature_group_count = (\d+)", text)) == {"1"}
    for seed, output in enumerate(lowered.compile()(stacked, image)):
        np.testing.assert_allclose(output, one(style_network.draw(4, 2, seed), image[seed]), rtol=1e-5, atol=1e-6)


def test_untrained_weights_are_the_same_every_time_and_grey_is_their_zero():
    one, other = (Config("random", width=4, stages=3).load() for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    for maps in jax.jit(Config(width=4, stages=3).maps)(one, np.full((1, 16, 16, 3), 0.5, np.float32)):
        np.testing.assert_allclose(maps, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "style.weights is empty: .*style_network.py convert"),
        ({"weights": "absent.safetensors"}, "there is no such file"),
        ({"weights": "random", "stages": 5}, "style.stages = 5"),
        ({"weights": "random", "width": 0}, "style.width = 0"),
        ({"weights": "random", "dtype": "float16"}, "style.dtype = 'float16'"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Config(**settings).load()


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match=r"images of 8 px .* lower style.stages"):
        Config(width=4).encode(style_network.draw(4, 4), images(1, 8, 8))


# The script


def written(tmp_path, width=WIDTH):
    for name, state in zip(("vgg", "decoder"), both_states(width), strict=True):
        save_file(state, tmp_path / f"{name}.safetensors")
    return [str(tmp_path / f"{name}.safetensors") for name in ("vgg", "decoder", "out")]


def test_conversion(tmp_path, capsys):
    vgg, decoder, out = written(tmp_path)
    assert prepare.main(["convert", vgg, decoder, out]) == 0 and f"written: {out}" in capsys.readouterr().out
    jax.tree.map(np.testing.assert_array_equal, Config(out, width=WIDTH).load(), converted())
    with pytest.raises(ValueError, match=r"holds width 2, 4 stages, and style.width = 64, style.stages = 4: set both"):
        Config(out).load()
    assert prepare.main(["convert", decoder, vgg, out]) == 2 and "has no 0.weight" in capsys.readouterr().err


def train(content, styles, out, *settings):
    usual = {"--width": "4", "--stages": "2", "--batch": "4", "--lr": "1e-2", "--steps": "160"}
    chosen = usual | dict(zip(settings[::2], settings[1::2], strict=True))
    return prepare.main(["train", content, styles, str(out), *(word for pair in chosen.items() for word in pair)])


def test_training_lowers_the_loss_and_leaves_the_encoder(tmp_path, monkeypatch, capsys):
    few = functools.partial(shapes.Config, train_images=256, val_images=16, test_images=16)
    monkeypatch.setattr(shapes, "Config", few)
    out = tmp_path / "deep" / "style.safetensors"
    assert train("shapes", "shapes", out, "--batch", "2") == 0
    said = capsys.readouterr().out
    total = np.array(re.findall(r"content (\S+), style (\S+),", said), float) @ (1, 10)
    assert len(total) == 20 and total[-4:].mean() < 0.5 * total[:4].mean() and f"written: {out}" in said
    fresh, params = style_network.draw(4, 2), Config(str(out), width=4, stages=2).load()
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], fresh["encoder"])
    assert all((a != b).any() for a, b in zip(jax.tree.leaves(params["decoder"]), jax.tree.leaves(fresh["decoder"]), strict=True))


def test_training_on_folders_with_the_encoder_of_a_file(tmp_path, capsys):
    vgg, _, out = written(tmp_path, width=4)
    for name in ("content", "style"):
        (tmp_path / name / "all").mkdir(parents=True)
        for i, image in enumerate(images(3, 24, 30, seed=len(name))):
            Image.fromarray((255 * image).astype(np.uint8)).save(tmp_path / name / "all" / f"{i}.png")
    asked = [str(tmp_path / "content"), str(tmp_path / "style"), out]
    assert (
        train(*asked, "--encoder", vgg, "--resize-px", "20", "--side-px", "15", "--steps", "2") == 0
        and capsys.readouterr().out.count("step ") == 2
    )
    encoder = style_network.encoder_from_torch(torch_files.read(vgg), stages=2)
    jax.tree.map(np.testing.assert_array_equal, Config(out, width=4, stages=2).load()["encoder"], encoder)
    assert train(*asked, "--encoder", vgg, "--width", "8") == 2 and "set --width and --stages" in capsys.readouterr().err
    assert train("nowhere", "shapes", tmp_path / "new.safetensors", "--side-px", "32") == 2 and "nowhere" in capsys.readouterr().err


def test_an_interrupted_training_resumes_where_it_stopped(tmp_path, monkeypatch, capsys):
    few = functools.partial(shapes.Config, train_images=256, val_images=16, test_images=16)
    monkeypatch.setattr(shapes, "Config", few)
    whole, halves = tmp_path / "whole.safetensors", tmp_path / "halves.safetensors"
    assert train("shapes", "shapes", whole, "--steps", "12") == 0

    def interrupted(*arguments, real=prepare.scaled):
        for number, batch in enumerate(real(*arguments)):
            if number == 5:
                raise KeyboardInterrupt
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "scaled", interrupted)
        assert train("shapes", "shapes", halves, "--steps", "12") == 130
    capsys.readouterr()
    assert train("shapes", "shapes", halves, "--steps", "12", "--style-weight", "1") == 2
    assert "with style_weight = 10.0, not 1.0: use the same settings" in capsys.readouterr().err
    assert train("shapes", "shapes", halves, "--steps", "12") == 0 and "resumed after step 5\n" in capsys.readouterr().out
    jax.tree.map(np.testing.assert_array_equal, *(Config(str(path), width=4, stages=2).load() for path in (whole, halves)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["halves.safetensors", "whole.safetensors"]
    assert train("shapes", "shapes", whole, "--steps", "12") == 2 and "no training of it is unfinished" in capsys.readouterr().err


def test_losses_are_those_of_the_paper():
    encoder, decoder = both_states()
    content, styled = images(2, 16, 16, seed=2), images(2, 16, 16, seed=3)

    def moments(maps):
        return maps.mean((2, 3), keepdims=True), np.sqrt(maps.var((2, 3), keepdims=True, ddof=1) + style.EPSILON)

    of_style, features = encoded(encoder, styled), encoded(encoder, content)[-1]
    (mean, deviation), (new_mean, new_deviation) = moments(features), moments(of_style[-1])
    target = new_deviation * (features - mean) / deviation + new_mean
    of_output = encoded(encoder, decoded(decoder, target))
    differences = [(a - b) ** 2 for x, y in zip(of_output, of_style, strict=True) for a, b in zip(moments(x), moments(y), strict=True)]
    losses = jax.jit(lambda *arrays: prepare.losses(Config(width=WIDTH), *arrays))(converted(), content, styled)
    np.testing.assert_allclose(losses, (((of_output[-1] - target) ** 2).mean(), sum(d.mean() for d in differences)), rtol=1e-4)
