"""The contract, for every method at once: what a trainer may rely on without knowing which one it runs."""

import dataclasses
import functools
import re
import typing

import jax
import numpy as np
import pytest
import tiny

from jaxbed import config, stages, values
from jaxbed.data import augment
from jaxbed.method import Info
from jaxbed.methods import augmix, biasensemble, debiased, dfr, disent, infodrop, lff, lisa, rsc
from jaxbed.models import simple_conv
from jaxbed.training import members, plan, train

STEPS = 20
# are trained on an MLP, which compiles in a fraction of the time
ON_ANY_NET = ("lff", "disent", "end", "lnl", "hex", "mixup", "cutmix", "reweight", "resample", "groupdro", "lisa")
ON_ANY_NET += ("augmix", "noise2net", "fast_adversarial", "biasensemble", "biasensemble_disent", "jtt", "dfr", "softcon")
# on two convolutions, for the same reason
ON_MAPS = ("erm", "sagnet", "sagnet_biasbed", "rsc", "debiased")
# on a ResNet of one block, with a shortcut; all others on one without blocks: they act between its parts, or replace its convolutions
IN_BLOCKS = ("padain",)


def small(method: str) -> config.Train:
    # of a head alone, of what a projection leaves, of a head that others slow down, of groups of which the worst counts most
    rates = {"dfr": 0.1, "hex": 0.3, "softcon": 0.03, "groupdro": 0.02}
    if method in ON_MAPS:
        net, adam = simple_conv.Config(kernel=3, widths=(16, 64), stride=2), tiny.Optim(rule="adam", lr=0.05)
        cfg = tiny.train_config(method, epochs=STEPS, net=net, optim=adam)
        # a CPU is slow at convolutions within a branch, of which "full" has none; test_debiased tests the others
        style = tiny.style_network.Config("random", width=4, stages=1)
        of_method = {"sagnet": {"style_stage": 1}, "debiased": {"grid": "full", "style": style}}.get(method.partition("_")[0], {})
        return dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, **of_method))
    if method in ON_ANY_NET:
        cfg = tiny.mlp_config(method, epochs=STEPS, net=tiny.mlp.Config((32,)), optim=tiny.Optim(rule="adam", lr=rates.get(method, 0.01)))
        # fewer layers and operations, which take longer than the network; test_noise2net and test_augmix have all
        of_method = {"noise2net": {"hidden": 4, "blocks": 2}, "augmix": {"width": 2, "depth": 1}}.get(method, {})
        return dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, **of_method))
    if method in IN_BLOCKS:
        net, lr = dataclasses.replace(tiny.RESNET_4, width=16), 0.05
    else:  # DSU draws noise for every channel
        width, lr = (32, 0.1) if method == "dsu" else (64, 0.05)
        net = dataclasses.replace(tiny.RESNET_2, width=width)
    return tiny.train_config(method, epochs=STEPS, net=net, optim=tiny.Optim(rule="adam", lr=lr))


@functools.cache
def images_of_8_px():
    """The data of `tiny`, every fourth pixel of it: convolutions are slow on a CPU."""
    source = tiny.DATA.open()
    train = source.train._replace(image=np.ascontiguousarray(source.train.image[:, ::4, ::4]))
    return dataclasses.replace(source, train=train, augment=augment.make(tiny.DATA.augment, train.image.shape[1:]))


@functools.cache
def trained(method: str):
    """(program, runs): the state after 0, 1, ..., STEPS steps of two seeds."""
    cfg = small(method)
    program = tiny.program(cfg, images_of_8_px())
    runs = [jax.device_get(train.start(cfg, program))]
    run, batches = train.start(cfg, program), train.feeds_from(cfg, program, 0)
    for _ in range(STEPS):
        run = program.advance(run, program.arrays, next(batches), program.seeds.array)
        runs.append(jax.device_get(run))
    return program, runs


ALIKE = ("sagnet_biasbed", "cutmix", "biasensemble_disent")  # are run when asked for: another variant is always


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in tiny.METHODS])
def method(request):
    return request.param


def test_state_keeps_its_tree_shapes_and_types(method):
    program, runs = trained(method)
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), program.abstract)
    for run in (runs[0], runs[-1]):
        assert jax.tree.map(lambda x: (x.shape, x.dtype), run) == expected


def test_state_is_finite_and_counts_steps(method):
    _, runs = trained(method)
    for step, run in enumerate(runs):
        assert run.alive.all() and (run.state.step == step).all()
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(run) if np.issubdtype(x.dtype, np.floating))


def test_every_parameter_moves(method):
    _, runs = trained(method)
    for (path, before), after in zip(
        jax.tree_util.tree_leaves_with_path(runs[0].state.params), jax.tree.leaves(runs[-1].state.params), strict=True
    ):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        moves = method != "dfr" or name.startswith("retrained/linear")  # whose other layers stay as they are
        assert ((before != after).any(axis=tuple(range(1, before.ndim))) == moves).all(), name


def test_every_batch_statistic_moves(method):
    _, runs = trained(method)
    for (path, before), after in zip(
        jax.tree_util.tree_leaves_with_path(runs[0].state.stats), jax.tree.leaves(runs[-1].state.stats), strict=True
    ):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        moves = method != "dfr" or name.startswith("retrained/standard")  # whose network stays as it is
        assert ((before != after).any(axis=tuple(range(1, before.ndim))) == moves).all(), name


def test_loss_falls(method):
    _, runs = trained(method)
    per_step = np.diff([run.sums["loss"] for run in runs], axis=0)  # [STEPS, S]
    assert (per_step[-4:].mean(0) < 0.9 * per_step[:4].mean(0)).all()


def test_seeds_differ(method):
    _, runs = trained(method)
    assert all((x[0] != x[1]).any() for x in jax.tree.leaves(runs[0].state.params) if x.ndim > 2)


def test_prediction_is_deterministic_and_one_row_an_image(method):
    program, runs = trained(method)
    state = jax.tree.map(lambda x: x[0], runs[-1].state)
    image, others = np.split(program.training_set["image"][:10].astype(np.float32) / 255, 2)
    among = np.concatenate([image[:1], others[1:]])
    predict = jax.jit(program.method.predict)
    first, second = (predict(state.params, state.stats, image) for _ in range(2))
    assert first.shape == (5, program.info.classes)
    np.testing.assert_array_equal(first, second)
    among_others = predict(state.params, state.stats, among)
    np.testing.assert_allclose(first[0], among_others[0], rtol=1e-4, atol=1e-5)  # no statistics of the batch
    assert (first[1:] != among_others[1:]).any()


def test_numbers_that_vary_within_an_array_are_checked(method):
    cfg, source = (tiny.mlp_config if method in ON_ANY_NET else tiny.train_config)(method), tiny.DATA.open()
    of_method = set(trained(method)[0].abstract.state.hparams) & {field.name for field in dataclasses.fields(cfg.method)}
    for name in of_method:
        for value in (-1.0, float("nan"), float("inf")):
            wrong = dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, **{name: value}))
            with pytest.raises(ValueError, match=f"method.{name} = {value}"):
                plan.check(members.one(wrong, source))


MIXES = ("padain", "sagnet", "mixstyle", "efdmix", "mixup", "cutmix", "disent", "debiased", "lisa")


@pytest.mark.parametrize("method", [*MIXES, "dsu", "rebias", "dfr", "softcon"])
def test_a_batch_of_one_is_refused_where_images_need_each_other(method):
    with pytest.raises(ValueError, match="batch_size = 1" + (" leaves no other image to mix with" if method in MIXES else "")):
        tiny.program(dataclasses.replace(small(method), batch_size=1), images_of_8_px())


def test_a_method_sees_the_second_cue_only_if_it_says_so(method):
    program, _ = trained(method)
    assert ("bias" in program.arrays) == bool(tiny.METHODS[method].reads_bias)


@pytest.mark.parametrize(
    "config, net, message",
    [
        (tiny.padain.Config(), tiny.mlp.Config(), "give it a resnet.Config"),
        (tiny.sagnet.Config(), tiny.mlp.Config(), "give it a resnet.Config"),
    ],
)
def test_bad_settings_are_refused_by_name(config, net, message):
    with pytest.raises(ValueError, match=message):
        config.make(Info(classes=16, train_size=64, steps_per_epoch=4, epochs=2), net, tiny.Optim())


def test_augmentation_is_of_the_seed_and_the_step_and_not_of_evaluation():
    data = dataclasses.replace(tiny.DATA, augment=tiny.shapes.Augment(mean=(0.5,), std=(0.25,), crop="padded", flip=0.5))
    plain, augmented = (tiny.program(tiny.mlp_config(data=d, net=tiny.mlp.Config(()))) for d in (tiny.DATA, data))
    source = data.open()
    image = source.train.image[:8]
    for_evaluation = jax.jit(source.scale)(image)
    np.testing.assert_array_equal(for_evaluation, jax.jit(tiny.DATA.open().scale)(image))
    assert (jax.jit(source.augment)(jax.random.key(0), image) != for_evaluation).any()
    losses = []
    for program in (plain, augmented, augmented):
        run, batches = train.start(tiny.mlp_config(), program), train.feeds_from(tiny.mlp_config(), program, 0)
        for _ in range(2):
            run = program.advance(run, program.arrays, next(batches), program.seeds.array)
        losses.append(np.asarray(run.sums["loss"]))
    assert (losses[0] != losses[1]).all() and (losses[1] == losses[2]).all()


# are read outside the step, by stages and the drawing of batches; of the biased network beside a Simple Conv alone
ELSEWHERE = ("epochs_before", "finetune_epochs", "finetune_lr", "held_out", "networks", "agreement", "confidence", "upweight", "ratio")
ELSEWHERE += ("biased.stride",)


def forms(method):
    """A method's configuration, and those with another word or truth value in one of its fields."""
    yield method
    for field, value, hint, _ in values.fields(method):
        for word in (True, False) if hint is bool else [each for each in typing.get_args(hint) if isinstance(each, str)]:
            if word != value:
                yield values.with_field(method, field, word)


def program_or_refusal(method):
    """The lowered program of a method, or why there is none."""
    try:
        return tiny.programs(method)
    except ValueError as error:
        return str(error)


LONG = {"augmix", "biasensemble_disent", "debiased", "disent", "groupdro", "infodrop", "lisa", "lnl", "rebias", "sagnet", "sagnet_biasbed"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in tiny.METHODS])
def test_a_number_that_has_no_effect_is_refused(name):
    for form in forms(tiny.METHODS[name]):
        plain = program_or_refusal(form)
        if isinstance(plain, str):
            assert "no effect with" in plain or name == "infodrop", (form, plain)
            continue
        for field, value, hint, _ in values.fields(form):
            of_stage = field in ELSEWHERE or (field == "q" and hasattr(form, "base"))
            if type(value) in (int, float) and not of_stage:
                others = [value * 0.9, value - 1, value + 1, value + 4]
                changed = next(each for each in others if each != value and values._fits(each, hint))
                found = program_or_refusal(values.with_field(form, field, changed))
                assert found != plain, f"{field} = {changed} of {form}"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (biasensemble.Config(lff.Config(q=0.5)), "method.base.q = 0.5 has no effect with BiasEnsemble: set method.q"),
        (biasensemble.Config(disent.Config(q=0.5)), "method.base.q = 0.5 has no effect with BiasEnsemble: set method.q"),
        (debiased.Config(variant="biasbed", grid="fine"), "method.grid = 'fine' has no effect with method.variant = 'biasbed'"),
        (rsc.Config("imagenet", features=0.5), "method.features = 0.5 has no effect with method.variant = 'imagenet'"),
        (rsc.Config("spatial_channel", samples=0.5), "method.samples = 0.5 has no effect with method.variant = 'spatial_channel'"),
        (augmix.Config(consistency=False, weight=1.0), "method.weight = 1.0 has no effect with method.consistency = false"),
        (lisa.Config(balanced=False, groups="cells"), "method.groups = 'cells' has no effect with method.balanced = false"),
    ],
)
def test_what_a_method_does_not_read_is_refused_by_name(method, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tiny.programs(method)


def test_what_a_methods_stages_do_not_read_is_refused_by_name():
    cases = (
        (infodrop.Config(finetune_lr=0.01), "", "method.finetune_lr = 0.01 has no effect with method.finetune_epochs = 0"),
        (dfr.Config(epochs_before=2), "runs/erm", "method.epochs_before = 2 has no effect with init_from = runs/erm"),
    )
    for method, init_from, message in cases:
        with pytest.raises(ValueError, match=message):
            stages.of(dataclasses.replace(tiny.mlp_config(), method=method, init_from=init_from))
