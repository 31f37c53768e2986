"""In what the two algorithms of a pair differ, by the settings of their runs: a pair tells about one thing if it differs in one.

Source of the rule: matched pairs of Hendrycks et al. (2021), which have the same network, data and schedule but for what is tested.
"""

from collections.abc import Mapping
from typing import Any

from jaxbed.stats import names
from jaxbed.stats.reading import workdirs

TRAINING_SET = "training_set"  # a fingerprint of the training images, which a run notes beside its settings
TAGS = {  # {tag: first words of settings}, longer ones first
    "augmentation": ("data.augment", "data.of.augment"),
    "images": ("data", TRAINING_SET),
    "network": ("net",),
    "method": ("method",),
    "start": ("init_from",),
}
REST = "schedule"
ALL = (*TAGS, REST)


def named(text: str) -> tuple[str, ...]:
    """The tags that a text names. Raises ValueError for other words."""
    words = text.replace(",", " ").replace(";", " ").split()
    if unknown := [word for word in words if word not in ALL]:
        raise ValueError(f"differs {names.quoted(unknown[0])}: write what the pair differs in, of {', '.join(ALL)}")
    return tuple(tag for tag in ALL if tag in words)


def differing(treated: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, list[str]]:
    """{tag: settings that differ, as "optim.lr: 0.1 / 0.2"} of two configurations as dictionaries, each perhaps with its TRAINING_SET.

    Seeds and places of files do not count; of workdirs that runs start from, their settings do.
    """
    known = bool(treated.get(TRAINING_SET) and control.get(TRAINING_SET))
    one, other = ({name: value for name, value in each.items() if known or name != TRAINING_SET} for each in (treated, control))
    found: dict[str, list[str]] = {}
    for line in workdirs.differing(one, other):
        field = f"{line.partition(':')[0]}."
        tag = next((tag for tag, first in TAGS.items() if field.startswith(tuple(f"{words}." for words in first))), REST)
        found.setdefault(tag, []).append(line)
    return {tag: found[tag] for tag in ALL if tag in found}


def check(treated: Mapping[str, Any], control: Mapping[str, Any], told: tuple[str, ...]) -> tuple[str, ...]:
    """The tags of a pair. told: those that it may differ in; none: any one.

    Raises ValueError for a pair that differs in more.
    """
    found = differing(treated, control)
    if set(found) - set(told) and (told or len(found) > 1):
        more = {tag: f" and {len(lines) - 1} more" if len(lines) > 1 else "" for tag, lines in found.items()}
        listed = "; ".join(f"{tag} ({lines[0]}{more[tag]})" for tag, lines in found.items())
        raise ValueError(
            f"treated and control differ in {listed}, and so tell about none of these alone: take runs that differ in one, or, where all "
            f"of it is meant, write {' '.join(found)} in a column differs"
        )
    return tuple(found)
