"""States on their way through steps on devices that share a batch: optimizers on vectors, running statistics apart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxbed import parallel
from jaxbed.method import Info
from jaxbed.methods import erm, sagnet
from jaxbed.models import simple_conv
from jaxbed.models.norm import BatchNorm, apart, together
from jaxbed.optim import Optim
from jaxbed.training import train
from jaxbed.training.sharing import Sharing

METHODS = {"erm": erm.Config(), "sagnet": sagnet.Config(style_stage=1)}  # one optimizer; three, each for some of the parameters


def test_statistics_that_groups_kept_by_themselves_are_those_of_all_groups_at_every_step():
    layer, rng = BatchNorm(groups=2), np.random.default_rng(0)
    batches = rng.normal(size=(3, 8, 2, 2, 5)).astype(np.float32) + np.arange(8, dtype=np.float32)[:, None, None, None]
    variables = layer.init(jax.random.key(0), batches[0], train=False)
    of_all, of_each = variables["batch_stats"], apart(variables["batch_stats"], 2)
    for batch in batches:
        of_all, of_each = (
            layer.apply({"params": variables["params"], "batch_stats": stats}, batch, train=True, mutable=["batch_stats"])[1]["batch_stats"]
            for stats in (of_all, of_each)
        )
    assert {x.shape for x in jax.tree.leaves(of_each)} == {(2, 5)} and not np.allclose(of_each["mean"][0], of_each["mean"][1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), together(of_each, 2), of_all)
    shown = [layer.apply({**variables, "batch_stats": stats}, batches[0], train=False) for stats in (of_each, of_all)]
    np.testing.assert_allclose(*shown, rtol=1e-4, atol=1e-5)


def test_a_run_keeps_the_means_whatever_it_does_in_one_call():
    net = dataclasses.replace(tiny.RESNET_6, norm_groups=2)
    runs = []
    for steps in (1, 2):
        cfg = tiny.train_config(net=net, seeds=1, mesh=parallel.Mesh(seed=1, data=2, steps_per_call=steps))
        made = tiny.program(cfg)
        feeds, run = train.feeds_from(cfg, made, 0), train.start(cfg, made)
        for _ in range(2 // steps):
            run = made.advance(run, made.arrays, next(feeds), made.seeds.array)
        assert jax.tree.map(np.shape, run) == jax.tree.map(np.shape, made.abstract)
        runs.append(run.state.stats)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *runs)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("name", METHODS)
def test_a_state_leaves_in_the_form_in_which_it_entered(name, rule):
    optim, info, net = Optim(rule=rule), Info(3, 8, 4, 2), simple_conv.Config(3, (4, 4))
    method, on_vector = (METHODS[name].make(info, net, each) for each in (optim, optim.on_vector()))
    batch = {"image": np.zeros((8, 8, 8, 3), np.float32), "label": np.zeros(8, np.int32)}
    state = jax.tree.map(
        lambda x: jnp.arange(x.size, dtype=x.dtype).reshape(x.shape), jax.eval_shape(method.init, jax.random.key(0), batch)
    )
    sharing = Sharing(on_vector, 2)
    entered = sharing.enter(state, lambda: on_vector.init(jax.random.key(0), batch))
    moments = [x for x in jax.tree.leaves(entered.opt) if x.ndim]
    assert [x.ndim for x in moments] == [1] * {"erm": 1, "sagnet": 3}[name] * {"sgd": 1, "adam": 2}[rule]
    assert sum(x.size for x in moments) == sum(x.size for x in jax.tree.leaves(state.opt) if x.ndim)
    jax.tree.map(np.testing.assert_array_equal, sharing.leave(entered, state), state)
