"""Which shifted sets count, and which in-distribution set belongs to each."""

from collections.abc import Collection, Mapping, Sequence

from jaxbed.stats import names

# Sets that show the images of another one: left out where that one is there, so that no image counts as two tests. Hendrycks et al. (2021)
# score ImageNet-A and -R among the 200 classes of each. Of Real Blurry Images they do not say among which classes; without a word on it,
# these are all 1000 that the network has.
OTHER_FORMS = {"imagenet_a_unmasked": "imagenet_a", "imagenet_r_unmasked": "imagenet_r", "blurry_present": "blurry"}


def counted(known: Mapping[str, Collection[str]], wanted: Sequence[str], left_out: Mapping[str, str], notes: list[str]) -> list[str]:
    """Those of the shifted sets {set: algorithms that have it} that are wanted, or all but other forms of the same images.

    A form is left out where the one that counts has all of its algorithms. left_out {set: why it cannot be scored}. Raises ValueError for a
    wanted set that is unknown, or is left out.
    """
    notes += [f"{name} is left out: {reason}" for name, reason in left_out.items() if not wanted]
    if wanted:
        found = names.find_each(wanted, [*known, *left_out], "--sets: there is no shifted set")
        if lost := [name for name in found if name in left_out]:
            raise ValueError(f"--sets {lost[0]}: {left_out[lost[0]]}")
        return found
    twice = {name: other for name, other in OTHER_FORMS.items() if name in known and set(known[name]) <= set(known.get(other, ()))}
    notes += [f"{name} has the images of {other}, which counts: it is left out; --sets chooses" for name, other in twice.items()]
    return [name for name in known if name not in twice]


def parse(text: str, tests: Collection[str], left_out: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """--iid SET,SET:SHIFTED,...: (in-distribution set of all shifted sets that are not named, {shifted set as written: its own}).

    The former is "" where none is given and there is not one only. left_out {set: why it cannot be scored}. Raises ValueError for a set
    that is unknown, left out or given twice.
    """
    default, of_shifted = "", {}
    for entry in (part.strip() for part in text.split(",") if part.strip()):
        written, _, shifted = (part.strip() for part in entry.partition(":"))
        if lost := names.find(written, left_out):
            raise ValueError(f"--iid {entry}: {left_out[lost]}")
        if (known := names.find(written, tests)) is None:
            raise ValueError(f"--iid {entry}: there is no set of role test with this name; {names.choice(written, tests)}")
        if (":" in entry and not shifted) or (not shifted and default) or shifted in of_shifted:
            raise ValueError(f"--iid {text}: write one set for all, and SET:SHIFTED for each shifted set that has another; not {entry} too")
        if shifted:
            of_shifted[shifted] = known
        else:
            default = known
    return default or (next(iter(tests)) if len(tests) == 1 else ""), of_shifted


def in_distribution(default: str, of_shifted: Mapping[str, str], shifted: Sequence[str], tests: Collection[str]) -> dict[str, str]:
    """{shifted set: its in-distribution set}, of what `parse` gives; {} without sets of role test.

    Raises ValueError for an unknown shifted set, and where there are several sets to choose from.
    """
    own: dict[str, str] = {}
    for written, test in of_shifted.items():
        name = names.find_each([written], shifted, f"--iid {test}:{written}: among the sets that count there is no shifted set")[0]
        if own.setdefault(name, test) != test:
            raise ValueError(f"--iid names two in-distribution sets of {name}, {own[name]} and {test}: keep one")
    lacking = [name for name in shifted if name not in own]
    if len(tests) > 1 and not default and (lacking or not shifted):
        example = f" or, for one alone, --iid {next(iter(tests))}:{lacking[0]}" if lacking else ""
        raise ValueError(f"there are several in-distribution sets, {names.listed(tests)}: choose one with --iid{example}")
    return {name: own.get(name, default) for name in shifted if name in own or default}
