"""The two modes of DeepAugment's distortions: as published, with the accidents of the published code, or as they were meant."""

from typing import Literal, get_args

Mode = Literal["faithful", "intended"]


def check_mode(mode: str) -> None:
    """Raises ValueError for an unknown mode."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode = {mode!r} of DeepAugment must be faithful (as published) or intended (without the accidents of its code)")
