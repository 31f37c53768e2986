"""What methods may ask of a network beyond logits, and how the network's Config declares what it offers.

Every network's Config is a dataclass with make(classes) -> a Flax module, called as module(image [B, H, W, C], train) -> logits
[B, classes] in float32. A Config lists what else it can do in `offers: ClassVar[frozenset[str]]`, by the names below; one without such a
list offers nothing else. A method passes what it needs to `require`, and its `net` has the protocol that says the same to a type checker.
Layers whose names contain "norm" are normalization layers: SagNet and Debiased treat their scales and biases differently.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import flax.linen as nn

CUT, MAPS, AFTER, NORM, CONV, STEM = "cut", "maps", "after", "norm", "conv", "stem"
WORDS = {
    CUT: "parts to be cut into (make(first=, last=))",
    MAPS: "maps of images of any size",
    AFTER: "places between its parts for other layers (make(after=))",
    NORM: "BatchNorms that can be replaced (make(norm=))",
    CONV: "convolutions that can be replaced (make(conv=))",
    STEM: "first convolution that it describes (first_conv)",
}
NORMS_BY_NAME = "which are those whose names contain norm, and this network has none"
Layer = Callable[..., nn.Module]
After = Callable[[int], nn.Module | None]


class Network(Protocol):
    """The Config of any network. MAPS: it takes images of any size, and maps [B, H, W, C] lead from part to part, up to the head."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def make(self, classes: int) -> nn.Module: ...


class Cuttable(Network, Protocol):
    """CUT: the parts [first, last) of 0 to parts - 1 can be made alone. The last part is the head.

    Parts without the head give maps [B, H, W, C] or vectors [B, F]; the head takes these, or the means of the maps, [B, F]. It has no
    batch statistics, and its last layer, named "head", has a kernel and a bias.
    """

    dtype: Any  # of activations: "float32" or "bfloat16"

    @property
    def parts(self) -> int: ...

    def make(self, classes: int, *, first: int = ..., last: int = ...) -> nn.Module: ...


class Hooked(Network, Protocol):
    """AFTER: after(part) is a layer that follows a part, the head excepted, or None.

    It is called as layer(x, entered, train) with what leaves and what entered the part, and gives what the next one gets.
    """

    @property
    def parts(self) -> int: ...

    def make(self, classes: int, *, after: After = ...) -> nn.Module: ...


class Normalized(Network, Protocol):
    """NORM: norm(name=) makes each BatchNorm; the first is named stem_norm, those of shortcuts shortcut_norm, of gates spatial_norm."""

    def make(self, classes: int, *, norm: Layer = ...) -> nn.Module: ...


class HookedNormalized(Hooked, Normalized, Protocol):
    """AFTER and NORM."""

    def make(self, classes: int, *, after: After = ..., norm: Layer = ...) -> nn.Module: ...


class Convolved(Cuttable, Protocol):
    """CONV: conv(features, kernel, stride, name=) makes each convolution outside shortcuts and gates; the first is named stem_conv.

    A network with groups of channels also gives groups=.
    """

    def make(self, classes: int, *, first: int = ..., last: int = ..., conv: Layer = ...) -> nn.Module: ...


class FirstConv(NamedTuple):
    """A convolution with padding (kernel - 1) / 2, then perhaps 3 x 3 max-pooling with stride 2, with or without padding."""

    kernel: int
    stride: int
    pooled: bool
    inside: bool = False  # without: `pool.max_pool_inside`


class Stemmed(Hooked, Protocol):
    """STEM: part 0 is a convolution, a normalization and an activation, and perhaps pooling."""

    @property
    def first_conv(self) -> FirstConv: ...


def offers(net: Any, *names: str) -> bool:
    """Whether a network's Config declares all of these."""
    return set(names) <= getattr(net, "offers", frozenset())


def activation_dtype(net: Any) -> Any:
    """The type of a network's activations; float32 where its Config does not say."""
    return getattr(net, "dtype", "float32")


def norm_groups(net: Any) -> int:
    """Into how many parts a network's BatchNorms cut a batch; 1 where its Config does not say."""
    return getattr(net, "norm_groups", 1)


def require(net: Network, reason: str, *needed: str) -> None:
    """Raises ValueError, with the reason, what is missing and which of jaxbed's networks have it, unless net offers all that is needed."""
    name = type(net).__module__
    if missing := [WORDS[each] for each in needed if not offers(net, each)]:
        cure = f"in the config file, give it {_offering(*needed)}"
        if not name.startswith(__package__):
            cure += f", or add what it has to its Config.offers (it has {sorted(getattr(net, 'offers', ()))})"
        raise ValueError(f"{reason} and cannot run on {name}, which has no {' and no '.join(missing)}: {cure}")
    if CUT in needed and cast(Cuttable, net).parts < 2:
        raise ValueError(f"{reason} and {name} leaves only its head (an MLP where net.widths = ()): take at least one hidden layer")


def require_stages(net: Cuttable | Hooked, field: str, *numbers: int) -> None:
    """Raises ValueError unless these are parts of net between the first and the head."""
    if wrong := [number for number in numbers if not 0 < number < net.parts - 1]:
        allowed = f"1 to {net.parts - 2}" if net.parts > 2 else "none"
        raise ValueError(f"{field}: this {type(net).__module__} has no stage {wrong[0]} before its head; its stages are {allowed}")


def _offering(*needed: str) -> str:
    """The networks of this package that offer all of these, those that offer most first."""
    package = importlib.import_module(__name__.rpartition(".")[0])
    modules = [importlib.import_module(f"{package.__name__}.{module.name}") for module in pkgutil.iter_modules(package.__path__)]
    fit = [module for module in modules if hasattr(module, "Config") and offers(module.Config, *needed)]
    fit.sort(key=lambda module: (-len(module.Config.offers), module.__name__))
    *others, last = [f"{module.__name__.rpartition('.')[2]}.Config()" for module in fit]
    return f"a {', '.join(others)} or {last}" if others else f"a {last}"
