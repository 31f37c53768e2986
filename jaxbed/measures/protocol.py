"""How images reach a network, in words: results of one network differ by points between protocols. Does not import JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxbed.settings import data_of


def of_settings(settings: Mapping[str, Any]) -> str:
    """From a configuration as a dictionary: sides of evaluation images in px, and how their pixels are scaled; "" where it does not say."""
    data = data_of(settings)
    augment = data.get("augment") or {}
    parts = []
    if side_px := data.get("side_px") or data.get("size_px"):
        resize_px = data.get("resize_px", side_px)
        if data.get("fit") == "crop" or "resize_px" in data:
            parts.append(f"shorter side resized to {resize_px} px, central {side_px} px" if resize_px else f"central {side_px} px")
        else:
            parts.append(f"both sides stretched to {side_px} px" if "fit" in data else f"images of {side_px} px")
    if augment.get("mean") and augment.get("std"):
        parts.append(f"pixels in [0, 1] less {_numbers(augment['mean'])}, over {_numbers(augment['std'])}")
    return "; ".join(parts)


def _numbers(values: Sequence[float]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"
