"""Which stored answers are those of the checkpoints and sets there are now, and why others are not."""

import hashlib
import pathlib
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from jaxbed.data import stream
from jaxbed.data.source import EvaluationSet
from jaxbed.evaluation import answers, pools

SAMPLED = 64  # images of each set, evenly spaced, whose pixels are part of its identity
Lacking = tuple[str, str, str]  # run, set, and why its answers do not count; "" where there are none


def identity(asked: EvaluationSet) -> str:
    """What a set asks: its names, labels and decision, and the pixels of some of its images, which are read."""
    image, label, bias, names = asked.split
    rows = np.unique(np.linspace(0, len(names) - 1, SAMPLED).astype(int))
    pixels = pools.strict(image).take(rows)[0] if isinstance(image, stream.Images) else image[rows]
    hashed = hashlib.sha256(f"{asked.decision} {pixels.shape}".encode())
    for array in (pixels, label, bias):
        hashed.update(np.ascontiguousarray(array).tobytes())
    hashed.update("\n".join(names).encode())
    return hashed.hexdigest()[:16]


def fault(path: pathlib.Path, images: int, checkpoint: str, asked: str, scored: bool = False) -> str | None:
    """Why a file is not what exactly this checkpoint answered to exactly this set, in words; "" where it is absent, None where it is."""
    try:
        stored = answers.read_answers(path, images)
    except FileNotFoundError:
        return ""
    except ValueError as error:
        return str(error)
    if str(stored.get("asked")) != asked:
        before = stored["response"].shape[1]
        return "its images, labels or decision changed" if before == images else f"its images changed ({before} before, {images} now)"
    if str(stored.get("checkpoint")) != checkpoint:
        return "another checkpoint gave the former answers"
    return "scores are to be kept, and its answers have none" if scored and answers.LOGITS not in stored else None


def answered_before(folder: pathlib.Path, asked: EvaluationSet, trained: dict[int, str]) -> bool:
    """Whether every checkpoint answered a set that eval.sets leaves out now."""
    paths = {folder / f"{epoch}.npz": checkpoint for epoch, checkpoint in trained.items()}
    if not paths or not all(path.is_file() for path in paths):
        return False
    what = len(asked.split.label), identity(asked)
    return all(fault(path, what[0], checkpoint, what[1]) is None for path, checkpoint in paths.items())


def keep(folder: pathlib.Path, sets: dict[str, EvaluationSet], asked: dict[str, str], trained: Collection[int]) -> None:
    """Raises ValueError for answers that would lose their meaning and cannot be given again, since their checkpoint is gone."""
    for name, question in asked.items():
        images = len(sets[name].split.label)
        for path in (folder / name).glob("*.npz"):
            if path.stem.isdecimal() and int(path.stem) not in trained and _question(path, images) not in (None, question):
                raise ValueError(
                    f"{path} answers other images, or by another decision, than {name} has now, and no checkpoint of that epoch is left: "
                    f"bring the former {name} back, or move {path.parent} away"
                )


def _question(path: pathlib.Path, images: int) -> str | None:
    """What the answers of a file were asked; None where it is absent, damaged or was changed, or does not say."""
    try:
        stored = answers.read_answers(path, images)
    except (FileNotFoundError, ValueError):
        return None
    return str(stored["asked"]) if "asked" in stored else None


def told(found: Mapping[int, Iterable[Lacking]], sets: int, first: bool) -> list[str]:
    """What is answered and why, a line for each reason, of {epoch: what it lacks}; runs have so many sets. first: also first answers."""
    epochs_of: dict[Lacking, list[int]] = {}
    for epoch, lacking in found.items():
        for each in lacking:
            epochs_of.setdefault(each, []).append(epoch)
    sets_of: dict[tuple[str, str, str], list[str]] = {}
    for (run, name, why), epochs in epochs_of.items():
        if why or first:
            sets_of.setdefault((run, why, spans(epochs)), []).append(name)
    lines = []
    for (run, why, at), names in sets_of.items():
        again = f" again, since {why}" if why else ""
        others = ", together with the other sets" if len(names) < sets else ""
        lines.append(f"{run}: {are(names)} answered{again}: {at}{others}")
    return lines


def are(names: Collection[str]) -> str:
    """The beginning of a sentence about sets."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def spans(epochs: Iterable[int]) -> str:
    """Numbers in words: epoch 3; epochs 1-5, 7."""
    runs: list[list[int]] = []
    for epoch in sorted(epochs):
        if runs and epoch == runs[-1][-1] + 1:
            runs[-1].append(epoch)
        else:
            runs.append([epoch])
    several = len(runs) > 1 or len(runs[0]) > 1
    return f"epoch{'s' if several else ''} " + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
