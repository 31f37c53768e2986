"""Convolutions of groups of channels: against a loop over groups, alone and in arrays of seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_resnets import conv as by_groups

from jaxbed.models import conv as conv_module
from jaxbed.models.conv import conv

GROUPS, SEEDS = 3, 2
X = np.random.default_rng(0).standard_normal((SEEDS, 2, 5, 5, 6), np.float32)
KERNEL = np.random.default_rng(1).standard_normal((SEEDS, 3, 3, 2, 12), np.float32)


def reference(x, kernel, stride):
    return by_groups(x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1), stride, GROUPS).transpose(0, 2, 3, 1)


def whole(x, kernel, weight, stride):
    """Output, and the gradients of both arguments."""

    def value(x, kernel):
        out = conv(x, kernel, stride, 1)
        return (out * weight).sum(), out

    return jax.grad(value, (0, 1), has_aux=True)(x, kernel)


@pytest.mark.parametrize("form", ["dense", "product"])
@pytest.mark.parametrize("stride", [1, 2])
def test_groups_times_seeds(form, stride, monkeypatch):
    """Seeds that share nothing, their images, or their kernels, against each seed alone, and that against a loop."""
    monkeypatch.setattr(conv_module, "product_pays", lambda *_: form == "product")
    conv_module._rules.cache_clear()
    outputs = np.stack([reference(x, kernel, stride) for x, kernel in zip(X, KERNEL, strict=True)])
    weight = np.random.default_rng(2).standard_normal(outputs.shape[1:], np.float32)

    def of_all(x, kernel):
        axes = [0 if array.ndim > 4 else None for array in (x, kernel)]
        return jax.vmap(lambda x, kernel: whole(x, kernel, weight, stride), axes)(x, kernel)

    together, same_images, same_kernel, alone = jax.jit(
        lambda x, kernel: (
            of_all(x, kernel),
            of_all(x[0], kernel),
            of_all(x, kernel[0]),
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *(whole(x[s], kernel[s], weight, stride) for s in range(SEEDS))),
        )
    )(X, KERNEL)
    conv_module._rules.cache_clear()
    np.testing.assert_allclose(together[1], outputs, rtol=1e-4, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), together, alone)
    # what is shared is seed 0's: its outcome is the same, and the other seed's output is that of the loop
    for shared, other in ((same_images, reference(X[0], KERNEL[1], stride)), (same_kernel, reference(X[1], KERNEL[0], stride))):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b[0], rtol=1e-4, atol=1e-4), shared, alone)
        np.testing.assert_allclose(shared[1][1], other, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_the_loop():
    """The convolution is linear in both arguments: the gradient, times a step, is the change of its output."""
    rng, weight = np.random.default_rng(3), np.float64(reference(X[1], KERNEL[1], 1))
    gradients, _ = jax.jit(lambda x, kernel: whole(x, kernel, jnp.asarray(weight, jnp.float32), 1))(X[0], KERNEL[0])
    steps = rng.standard_normal(X[0].shape), rng.standard_normal(KERNEL[0].shape)
    changes = reference(steps[0], KERNEL[0], 1), reference(X[0], steps[1], 1)
    for gradient, step, change in zip(gradients, steps, changes, strict=True):
        np.testing.assert_allclose((gradient * step).sum(), (change * weight).sum(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("kernel", [(3, 3, 4, 12), (3, 3, 2, 10)])
def test_shapes_without_common_groups_are_refused(kernel):
    with pytest.raises(ValueError, match=r"6 channels and a kernel \[3, 3, .* have no common groups: channels and features must be"):
        conv(X[0], np.zeros(kernel, np.float32), 1, 1)


def test_groups_count_in_what_a_product_gathers():
    """Patches have all channels of all groups."""
    shapes = (4, (3, 3, 4, 128), 1, (64, 28, 28, 128), "gpu")
    assert conv_module.product_pays(*shapes) and not conv_module.product_pays(*shapes, 32)


def test_gradients_of_groups_are_products_on_a_cpu():
    shapes = (1, (3, 3, 4, 128), 1, (8, 28, 28, 128))
    pays = {(b, g, n): conv_module.product_pays(*shapes, b, n, g) for b in ("cpu", "gpu") for g in (False, True) for n in (1, 32)}
    assert [key for key, value in pays.items() if value] == [("cpu", True, 32)]
