"""ResNet, once: torchvision's v1.5 geometry (stride in the 3x3 of a bottleneck), initialisation and BatchNorm constants.

Its options make ResNeXt, SE-ResNet, CBAM and Res2Net of it (`resnet_blocks`, `gates`): `presets.published.NETWORKS` lists published ones.

A network is six parts: 0 the stem, 1 to 4 the stages, 5 the head. A method that needs a piece of it (SagNet) asks for a range of
parts; one that changes its layers hands in a factory for the convolutions of the main path, stem included, or for the BatchNorms
(pAdaIN). Convolutions of shortcuts and gates are always plain; their BatchNorms are told by their names. One that acts between parts
hands in `after`: after(part) -> a module or None, called as module(x, entered, train) with what leaves and what entered that part, the
head excepted (MixStyle, InfoDrop).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar, Literal

import flax.linen as nn
import jax

from jaxbed.models.capabilities import AFTER, CONV, CUT, MAPS, NORM, STEM, After, FirstConv
from jaxbed.models.conv import Conv
from jaxbed.models.features import pooled
from jaxbed.models.linear import Linear
from jaxbed.models.norm import BatchNorm
from jaxbed.models.pool import max_pool, max_pool_inside
from jaxbed.models.resnet_blocks import GROUP_WIDTH, Basic, Bottleneck, Kind
from jaxbed.models.staged import PARTS, Staged
from jaxbed.values import Count, Dtype, ShareBelowOne

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BOTTLENECK = (50, 101, 152)
STEMS = {"imagenet": (7, 2), "deep": (3, 2), "small": (3, 1), "half": (3, 2)}  # kernel, stride of the first convolution
POOLED = ("imagenet", "deep")


@dataclasses.dataclass
class Config:
    depth: Literal[10, 18, 34, 50, 101, 152] = 50
    width: Count = 64  # channels of the first stage; 64 is the published network
    # imagenet: 7x7 stride 2, 3x3 max-pool; deep: three 3x3, the first with stride 2, and max-pool; small: 3x3; half: 3x3 stride 2
    stem: Literal["imagenet", "deep", "small", "half"] = "imagenet"
    # caffe: max-pool without padding, and the stride of a bottleneck without groups in its first 1x1, as in SENet's code
    layout: Literal["torchvision", "caffe"] = "torchvision"
    groups: Count = 1  # of the 3x3 of a bottleneck: 32 in ResNeXt 32x4d
    group_width: Count = GROUP_WIDTH  # of each of them in the first stage, at width 64: 4 in ResNeXt 32x4d, 26 in Res2Net 26w
    scales: Count = 1  # parts of the 3x3 of a bottleneck that follow each other: 4 in Res2Net 4s
    gate: Literal["none", "se", "cbam"] = "none"  # at the end of a block: squeeze-and-excitation, or CBAM
    shortcut: Literal["conv", "mean"] = "conv"  # where it halves: 1x1 with stride 2; mean: means of 2x2, then 1x1
    dropout: ShareBelowOne = 0.0  # before the last linear layer
    dtype: Dtype = "float32"  # of activations; parameters and statistics stay float32
    norm_groups: Count = 1  # parts of a batch that BatchNorm normalises each by itself; several devices then wait less for each other
    parts: ClassVar[int] = PARTS
    offers: ClassVar[frozenset[str]] = frozenset({CUT, MAPS, AFTER, NORM, CONV, STEM})

    @property
    def first_conv(self) -> FirstConv:
        if self.stem == "deep":
            raise ValueError("net.stem = deep: this method needs a stem of one convolution: take imagenet, half or small")
        return FirstConv(*STEMS[self.stem], pooled=self.stem in POOLED, inside=self.layout == "caffe")

    def make(
        self,
        classes: int,
        conv: Callable = Conv,
        norm: Callable = BatchNorm,
        after: After = lambda part: None,
        first: int = 0,
        last: int = PARTS,
    ) -> nn.Module:
        """The parts [first, last) of the network; with the head among them its output is logits [B, classes]."""
        if self.norm_groups > 1:
            if norm is not BatchNorm:
                raise ValueError(f"net.norm_groups = {self.norm_groups}: this method's BatchNorms are of its own, over the whole batch")
            norm = functools.partial(BatchNorm, groups=self.norm_groups)
        kind = Kind(
            conv=conv,
            norm=norm,
            groups=self.groups,
            group_width=self.group_width,
            scales=self.scales,
            gate=self.gate,
            early_stride=self.layout == "caffe" and self.groups == 1,
            mean_shortcut=self.shortcut == "mean",
        )
        self._check(kind)
        inside = self.layout == "caffe"
        return ResNet(classes, self.dtype, after, first, last, self.depth, self.width, self.stem, inside, self.dropout, kind)

    def _check(self, kind: Kind) -> None:
        """Raises ValueError for blocks that cannot be made."""
        plain = {"groups": 1, "group_width": GROUP_WIDTH, "scales": 1}
        if self.depth not in BOTTLENECK:
            for field, value in plain.items():
                if getattr(self, field) != value:
                    deep = ", ".join(map(str, BOTTLENECK))
                    raise ValueError(f"net.{field} = {getattr(self, field)}: net.depth = {self.depth} has no bottlenecks: take {deep}")
        elif not kind.part_width(self.width):
            least = -(-GROUP_WIDTH // self.width)
            raise ValueError(f"net.group_width = {self.group_width}: at net.width = {self.width} it must be at least {least}")


class ResNet(Staged):
    depth: int
    width: int
    stem: str
    inside: bool  # the windows of its max-pool
    dropout: float
    kind: Kind

    def part(self, number: int, x: jax.Array, train: bool) -> jax.Array:
        if number == 0:
            return self.enter(x, train)
        features = self.width * 2 ** (number - 1)
        for i in range(BLOCKS[self.depth][number - 1]):
            stride, name = 2 if number > 1 and i == 0 else 1, f"stage{number}_block{i}"
            if self.depth in BOTTLENECK:
                x = Bottleneck(features, stride, self.kind, i == 0, name=name)(x, train)
            else:
                x = Basic(features, stride, self.kind, name=name)(x, train)
        return x

    def head(self, x: jax.Array, train: bool) -> jax.Array:
        x = pooled(x)
        if self.dropout:
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return Linear(self.classes, name="head")(x)

    def enter(self, x: jax.Array, train: bool) -> jax.Array:
        """The stem's output."""
        kernel, stride = STEMS[self.stem]
        half = max(self.width // 2, 1)
        widths = (half, half, self.width) if self.stem == "deep" else (self.width,)
        for i, width in enumerate(widths, start=1):
            number = "" if i == 1 else str(i)
            x = self.kind.conv(width, kernel, stride if i == 1 else 1, name=f"stem_conv{number}")(x)
            x = nn.relu(self.kind.norm(name=f"stem_norm{number}")(x, train))
        if self.stem not in POOLED:
            return x
        return max_pool_inside(x) if self.inside else max_pool(x)
