"""Which corruptions of ImageNet-C a run's augmentation resembles: on these, its answers say little about a shift. Does not import JAX."""

from collections.abc import Mapping
from typing import Any

from jaxbed.measures.corruption_error import FAMILIES
from jaxbed.settings import data_of

MARK = "†"  # follows a number over corruptions that a network has trained with
COLOURS = {"brightness": "brightness", "contrast": "contrast", "saturation": "saturate"}  # fields of data.augment: corruptions
WITH_COLOURS = 13  # operations of AugMix, of which the last four are colour, contrast, brightness and sharpness


def of_settings(settings: Mapping[str, Any]) -> list[str]:
    """Names of the corruptions, sorted, that a configuration as a dictionary trains with.

    Speckle and Gaussian noise count as the whole family of noise. Images that were changed before training do not show in a configuration.
    """
    found: set[str] = set()
    augment = data_of(settings).get("augment") or {}
    if augment.get("noise", "none") != "none":
        found |= {*FAMILIES["noise"], "speckle_noise"}
    found |= {corruption for field, corruption in COLOURS.items() if augment.get(field)}
    if (settings.get("method") or {}).get("operations") == WITH_COLOURS:
        found |= set(COLOURS.values())
    return sorted(found)
