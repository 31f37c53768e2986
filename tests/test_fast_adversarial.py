"""Fast adversarial training: its attack, what it trains on, and its phases."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from PIL import Image
from test_config import of_file

from jaxbed import main as whole
from jaxbed.data import imagenet
from jaxbed.evaluation import validation
from jaxbed.method import Info
from jaxbed.methods import fast_adversarial
from jaxbed.methods.parts import losses
from jaxbed.models import mlp, resnet
from jaxbed.optim import Optim
from jaxbed.stages import of as stages_of

INFO = Info(4, 64, 4, 2)
NET = mlp.Config((8,))


@pytest.mark.parametrize(("start", "gradient", "end"), [(2, -1, -3), (-3, -1, -4), (4, 1, 4), (1, 0, 1)])
def test_a_step_along_the_sign_of_the_gradient_stays_within_the_radius(start, gradient, end):
    moved = fast_adversarial.shifted(jnp.float32(start / 255), jnp.float32(gradient), 4 / 255, 5 / 255)
    assert float(moved) == pytest.approx(end / 255)


def batch():
    image = np.random.default_rng(0).random((16, 6, 6, 3), np.float32)
    return {"image": image, "label": np.arange(16, dtype=np.int32) % 4, "index": np.arange(16, dtype=np.int32)}


def after_a_step(method_config, settings=Optim(lr=0.5, momentum=0.0)):  # noqa: B008
    made = method_config.make(INFO, NET, settings)
    state = jax.jit(made.init)(jax.random.key(0), batch())
    stepped, metrics = jax.jit(made.step)(state, batch(), jax.random.key(1))
    return made, state, stepped, metrics


def test_without_a_radius_it_is_erm():
    _, _, plain, _ = after_a_step(tiny.METHODS["erm"])
    _, _, attacked, _ = after_a_step(fast_adversarial.Config(epsilon=0.0, step=0.0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), attacked.params, plain.params)


def test_it_trains_on_images_that_the_network_gets_more_wrong():
    """In the direction in which a linear network's loss rises, all pixels move by the whole radius, but where that leaves [0, 1]."""
    made, state, _, metrics = after_a_step(fast_adversarial.Config(epsilon=16.0, step=20.0))
    given = batch()

    @jax.jit
    def mean_and_gradient(image):
        return jax.value_and_grad(lambda x: losses.cross_entropy(made.predict(state.params, state.stats, x), given["label"]).mean())(image)

    clean, gradient = mean_and_gradient(given["image"])
    strongest = np.clip(given["image"] + np.float32(16 / 255) * np.sign(gradient), 0, 1)
    worst, _ = mean_and_gradient(strongest)
    assert clean < float(metrics["loss"]) <= float(worst) * 1.01


def test_the_attack_on_validation_images_climbs_within_the_radius():
    made, state, _, _ = after_a_step(fast_adversarial.Config(epsilon=16.0))
    given = batch()

    @jax.jit
    def loss(image):
        return losses.cross_entropy(made.predict(state.params, state.stats, image), given["label"]).mean()

    moved = np.asarray(jax.jit(made.attacked)(state.params, state.stats, given["image"], given["label"]))
    assert np.abs(moved - given["image"]).max() <= 16 / 255 + 1e-6 and moved.min() >= 0 and moved.max() <= 1
    assert loss(moved) > loss(given["image"])


def test_a_fall_of_accuracy_under_attack_is_reported(tmp_path, monkeypatch, capsys):
    cfg = tiny.mlp_config("fast_adversarial", eval=tiny.config.Eval(batch_size=48))
    monkeypatch.setattr(validation, "FALL", -1.0)  # so that anything is one
    assert whole.run(cfg, tmp_path) == 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    accuracies = [line["metrics"]["val/attacked"] for line in lines if line["kind"] == "epoch"]
    assert [len(of_seeds) for of_seeds in accuracies] == [2, 2] and "val/attacked" in capsys.readouterr().out
    said = [line["text"] for line in lines if "catastrophic overfitting" in str(line.get("text"))]
    for seed, text in zip((0, 1), said, strict=True):  # not after the first epoch
        before, after = (f"{100 * of_seeds[seed]:.0f}" for of_seeds in accuracies)
        assert text.startswith(f"seed {seed}: accuracy on val under attack fell from {before} to {after} % within an epoch")


def test_normalisation_layers_need_not_decay():
    """Without gradients, only what decays moves."""
    settings = Optim(lr=1.0, momentum=0.0, weight_decay=0.5, decay_norms=False)
    made = tiny.METHODS["erm"].make(INFO, tiny.RESNET_4, settings)
    state = jax.eval_shape(made.init, jax.random.key(0), batch())
    params = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), state.params)
    gradient = jax.tree.map(np.zeros_like, params)
    for optim in (settings, settings.on_vector()):
        transform = optim.transform(INFO)(optim.hparams())
        update = jax.jit(lambda params, gradient, transform=transform: transform.update(gradient, transform.init(params), params)[0])
        updates = jax.device_get(update(params, gradient))
        moved = {jax.tree_util.keystr(path): float(leaf.ravel()[0]) for path, leaf in jax.tree.leaves_with_path(updates)}
        assert {value for name, value in moved.items() if "norm" in name} == {0.0}
        assert {value for name, value in moved.items() if "norm" not in name} == {-0.5}


def test_a_linear_schedule_goes_through_its_milestones():
    settings = Optim(lr=0.4, momentum=0.0, schedule="linear", milestones_epochs=(0, 1, 2), factors=(0.0, 1.0, 0.1))
    build, param = settings.transform(INFO), jnp.float32(0)
    state, seen = build(settings.hparams()).init(param), []
    descend = jax.jit(lambda state: build(settings.hparams()).update(jnp.float32(-1), state, param))
    for _ in range(9):
        update, state = descend(state)
        seen.append(float(update))
    np.testing.assert_allclose(seen, [0, 0.1, 0.2, 0.3, 0.4, 0.31, 0.22, 0.13, 0.04], atol=1e-6)
    with pytest.raises(ValueError, match=r"warmup_epochs = 0.5: schedule = linear has its warm-up in factors"):
        dataclasses.replace(settings, warmup_epochs=0.5).transform(INFO)
    for factors in ((1.0,), (1.0, 0.5)):
        with pytest.raises(ValueError, match="schedule = linear needs one for each of milestones_epochs"):
            dataclasses.replace(settings, factors=factors).transform(INFO)


def test_the_released_recipe_has_three_phases():
    cfg = of_file("fast_adversarial").get_config("imagenet")
    first, second, last = stages_of(cfg)
    assert [stage.cfg.data.augment.crop_px for stage in (first, second, last)] == [128, 224, 288]
    assert [(stage.name, stage.start) for stage in (first, second, last)] == [("phase 1", ""), ("phase 2", "phase 1"), ("", "phase 2")]
    assert [stage.cfg.epochs for stage in (first, second, last)] == [6, 6, 3] and not last.cfg.optim.decay_norms
    assert all(stage.cfg.method.phases == "one" for stage in (first, second, last))
    other_crop = dataclasses.replace(cfg.data, augment=dataclasses.replace(cfg.data.augment, crop_px=160))
    cosine = dataclasses.replace(cfg.optim, schedule="cosine")
    for changes in ({"epochs": 20}, {"data": tiny.DATA}, {"batch_size": 64}, {"data": other_crop}, {"optim": cosine}):
        with pytest.raises(ValueError, match="phases = imagenet"):
            stages_of(dataclasses.replace(cfg, **changes))
    with pytest.raises(ValueError, match=r"init_from = runs/erm:90: .* no network would start from that run"):
        stages_of(dataclasses.replace(cfg, init_from="runs/erm:90"))
    assert stages_of(dataclasses.replace(cfg, init_from="erm.safetensors"))[0].cfg.init_from == "erm.safetensors"


def test_each_phase_goes_on_with_other_crops(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(12):
            Image.fromarray(rng.integers(0, 256, (30, 30, 3), np.uint8)).save(tmp_path / "images" / name / f"{number}.png")
    phases = [fast_adversarial.Phase(1, crop, stored, 8, (0, 1), (1.0, 0.5)) for crop, stored in ((8, 12), (12, 16))]
    monkeypatch.setattr(fast_adversarial, "PHASES", phases)
    data = imagenet.Config(train=str(tmp_path / "images"), val_from_train=4, side_px=12, resize_px=16)
    monkeypatch.setitem(resnet.BLOCKS, 10, (0, 0, 0, 0))  # images of several sizes need no more than a stem
    net = resnet.Config(depth=10, width=2, stem="half")
    cfg = tiny.train_config(net=net, data=data, epochs=2, batch_size=8)
    cfg = fast_adversarial.in_phase(dataclasses.replace(cfg, method=fast_adversarial.Config(phases="imagenet")), phases[0])
    assert whole.run(cfg, tmp_path / "run") == 0
    saved = [json.loads((tmp_path / "run" / place / "config.json").read_text()) for place in ("stages/phase_1", ".")]
    assert [each["data"]["augment"]["crop_px"] for each in saved] == [8, 8]
    assert sorted(path.name for path in (tmp_path / "run" / "responses" / "val").glob("*.npz")) == ["1.npz"]
