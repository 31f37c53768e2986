"""A method that breaks its contract is refused by name before anything is written: the documented example, with one mistake each time."""

import re

import jax
import jax.numpy as jnp
import pytest
import tiny
from commands import ROOT, assert_refused, in_process

from jaxbed import main
from jaxbed.method import Info
from jaxbed.models import resnet
from jaxbed.optim import Optim
from jaxbed.training import contract

FOCAL = re.search(r'title="focal.py"\n(.*?)^```', (ROOT / "docs" / "extending" / "method.md").read_text(), re.MULTILINE | re.DOTALL)[1]
IMAGES = [f"--config.data.{name}_images={count}" for name, count in (("train", 64), ("val", 16), ("test", 16))]
TINY = [*IMAGES, "--config.net.width=4", "--config.batch_size=16", "--config.epochs=1", "--config.seeds=2", "--config.mesh.seed=1"]
LOGITS = "hparams, predict)"
MISTAKES = {
    "no return": ("return from_loss", "from_loss", "Focal.make() returned None: return a Method"),
    "no reads_bias": ("    reads_bias", "    # reads_bias", "method is a Config with reads_bias = None: write"),
    "a class": ("Config(), dataset", "Config, dataset", "method is the class Config: give Config()"),
    "a metric of images": ('"loss": value,', '"x": each,', "Focal.step: metric 'x' has the shape [16]: metrics are scalars"),
    "classes": (
        LOGITS,
        "hparams, lambda *given: predict(*given).argmax(-1))",
        "Focal.predict gave int32 [16]: it must give logits, float [16",
    ),
    "other classes": (
        LOGITS,
        "hparams, lambda *given: predict(*given)[:, 1:])",
        "Focal.predict gave float32 [16, 15]: it must give logits",
    ),
    "no name of a network": ('{"net": stats}', "stats", "Focal.step changed the form of the state: state.stats['net']"),
    "a loss of images": ("each).mean()", "each)", "loss gave a loss of the shape [16]: it must be a scalar"),
    "a loss alone": ('({"net": stats}, state.memory, metrics)', "metrics", "loss returned a tuple: return (scalar, (batch statistics"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_method_is_named_before_anything_is_written(mistake, tmp_path, monkeypatch):
    right, wrong, message = MISTAKES[mistake]
    assert FOCAL.count(right) == 1
    (tmp_path / "focal.py").write_text(FOCAL.replace(right, wrong))
    monkeypatch.setitem(resnet.BLOCKS, 10, (0, 0, 0, 0))  # less to trace
    assert_refused(in_process(tmp_path, main.main, "--config=focal.py", "--workdir=run", *TINY), message)
    assert {path.name for path in tmp_path.iterdir()} <= {"focal.py", "__pycache__"}


def test_a_state_that_changes_its_form_is_named():
    made = tiny.METHODS["erm"].make(Info(16, 64, 4, 2), tiny.RESNET_2, Optim(lr=0.05))
    image, label = jnp.zeros((8, 16, 16, 3)), jnp.zeros(8, jnp.int32)
    batch, key = {"image": image, "label": label}, jax.random.key(0)
    changes = {
        "state.memory had the PyTreeDef({})": {"memory": ()},
        "state.step was int32 [] and is float32 []": {"step": jnp.zeros(())},
        "state.hparams['more'] was absent and is float32 [2]": {"hparams": {"more": jnp.zeros(2)}},
    }
    for message, changed in changes.items():

        def step(state, batch, key, changed=changed):
            new, metrics = made.step(state, batch, key)
            return new.replace(
                **{**changed, **({"hparams": {**new.hparams, **changed["hparams"]}} if "hparams" in changed else {})}
            ), metrics

        wrong = contract.checked("X", made._replace(step=step), 16)
        state = jax.eval_shape(wrong.init, key, batch)
        with pytest.raises(ValueError, match=re.escape(f"X.step changed the form of the state: {message}")):
            jax.eval_shape(wrong.step, state, batch, key)
