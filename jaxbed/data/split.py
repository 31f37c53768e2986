"""A split: images with their label and, where there is one, the class a second cue votes for."""

from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """n images on the host.

    `cue` is the class that the second cue (texture, colour, background) votes for, in the label's own numbering; -1 where an
    image has none. An image is *aligned* where cue == label and *conflicting* where it has a cue and that cue differs.
    """

    image: np.ndarray  # [n, H, W, C] uint8
    label: np.ndarray  # [n] int32
    cue: np.ndarray  # [n] int32
    name: np.ndarray  # [n] str, unique within the split
