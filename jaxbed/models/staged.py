"""Networks of six parts: 0 the stem, 1 to 4 the stages, 5 the head. Any range of them can be made alone, with layers between them."""

import flax.linen as nn
import jax

from jaxbed.models.capabilities import After

PARTS = 6


class Staged(nn.Module):
    """The parts [first, last) of a network, which says what each is by `part` and `head`; after: see `capabilities.Hooked`."""

    classes: int
    dtype: str
    after: After
    first: int
    last: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:  # [B, H, W, C] -> maps, or [B, classes] with the head
        x = x.astype(self.dtype)
        for number in range(self.first, min(self.last, PARTS - 1)):
            entered = x
            x = self.part(number, x, train)
            layer = self.after(number)
            x = x if layer is None else layer(x, entered, train)
        return self.head(x, train) if self.last == PARTS else x

    def part(self, number: int, x: jax.Array, train: bool) -> jax.Array:
        """What the stem or a stage makes of a map."""
        raise NotImplementedError

    def head(self, x: jax.Array, train: bool) -> jax.Array:
        """[B, classes], of maps, or of their means [B, F]."""
        raise NotImplementedError
