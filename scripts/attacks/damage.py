"""Damaged files of runs: the same scores as before, or a refusal that names the file; never other scores."""

import pathlib
import re
import shutil
from collections.abc import Callable

import numpy as np

from attacks.processes import JAXBED, rude, unrefused
from attacks.runs import COMMANDS, World, kept

SCORES = "algorithm,run,dataset,accuracy\n" + "".join(
    f"{name},{run},{data},{60 + 3 * (name == 'b') + run + 7 * data:.1f}\n" for name in "abc" for run in range(3) for data in range(4)
)
STATISTICS = ("stats", "erm", "jtt", "--permutations", "200", "--missing", "drop")
# what is damaged, of a finished or (half) of a half-finished run, and the command that meets it
FILES = (
    ("erm/responses/*/*.npz", "statistics"),
    ("erm/responses/*/*.npz", "jaxbed eval"),
    ("erm/responses/*/images.csv", "statistics"),
    ("erm/responses/*/images.csv", "jaxbed eval"),
    ("jtt/responses/sets.json", "statistics"),
    ("jtt/responses/sets.json", "jaxbed eval"),
    ("jtt/config.json", "statistics"),
    ("jtt/config.json", "jaxbed eval"),
    ("jtt/config.json", "training"),
    ("half/training_set.json", "training"),
    ("half/training_set.json", "jaxbed eval"),
    ("half/log.jsonl", "training"),
    ("half/log.jsonl", "jaxbed eval"),
    ("half/checkpoints/epochs/*.json", "training"),
    ("half/checkpoints/epochs/*.json", "jaxbed eval"),
    ("half/checkpoints/epochs/**/*", "training"),
    ("half/checkpoints/epochs/**/*", "jaxbed eval"),
    ("half/checkpoints/resume/*.json", "training"),
    ("half/checkpoints/resume/**/*", "training"),
    ("jtt/stages/first_network/outputs.npz", "training"),
    ("jtt/stages/first_network/outputs.npz", "jaxbed eval"),
    ("jtt/stages/first_network/config.json", "training"),
    ("jtt/stages/first_network/training_set.json", "training"),
    ("scores.csv", "statistics"),
    ("sweep/*.csv", "sweep"),
    ("sweep/chosen.json", "sweep"),
    ("sweep/*/log.jsonl", "sweep"),
)
SLOW = "sweep"  # its every run is a process of its own


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content) + 1)]


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for place in rng.integers(len(content), size=rng.integers(1, 4)) if content else ():
        changed[place] ^= 1 << rng.integers(8)
    return bytes(changed)


def _zero_part(content: bytes, rng: np.random.Generator) -> bytes:
    place = rng.integers(len(content) + 1)
    return content[:place] + bytes(len(content) - place)


DAMAGES: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "cut": _cut,
    "flipped": _flip,
    "emptied": lambda content, rng: b"",
    "zeros": _zero_part,
    "random bytes": lambda content, rng: rng.bytes(len(content)),
    "another kind": lambda content, rng: b'{"is": 3}\n' if content[:2] == b"PK" else b"PK\x03\x04 \xff\xfe",
    "a folder": lambda content, rng: content,  # see `_damage`
}


def spoil(world: World, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """(attack, what went wrong) of one damaged file."""
    pattern, command = FILES[number % len(FILES)]
    if command == SLOW:
        return _attack(pattern, command), _sweep(world, pattern, rng)
    folder = world.case("training", "first stage")
    (folder / "scores.csv").write_text(SCORES)
    workdir, half = folder / pattern.partition("/")[0], pattern.startswith("half/")
    if half:
        workdir = folder / "erm"
        _halve(workdir, command == "training")
        pattern = pattern.replace("half/", "erm/")
    path, how = _damage(folder, pattern, rng)
    if command == "statistics":
        fault = _statistics(world, folder, path)
    else:
        fault = _run(world, folder, workdir.name, command, path)
    attack = _attack(pattern, command)
    return attack, fault and f"{path.relative_to(folder)} {how}: {fault}"


def _attack(pattern: str, command: str) -> str:
    return f"damaged {pattern.partition('/')[2] or pattern}, {command}"


def _halve(workdir: pathlib.Path, trains: bool) -> None:
    """A finished run becomes one that was killed after two of its three epochs, or one whose second epoch has no answers."""
    lost = ["responses/*/2.npz"]
    if trains:
        lost = ["checkpoints/epochs/3*", "checkpoints/resume/12*", "responses/*/3.npz"]
    for path in [path for pattern in lost for path in workdir.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _damage(folder: pathlib.Path, pattern: str, rng: np.random.Generator) -> tuple[pathlib.Path, str]:
    """Damages one file of the pattern; returns it, and how."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    path, how = files[rng.integers(len(files))], list(DAMAGES)[rng.integers(len(DAMAGES))]
    content = DAMAGES[how](path.read_bytes(), rng)
    path.unlink()
    path.mkdir() if how == "a folder" else path.write_bytes(content)
    return path, how


def _statistics(world: World, folder: pathlib.Path, path: pathlib.Path) -> str:
    if path.name == "scores.csv":  # any number may have been meant: only manners count
        done = world.server.call(folder, JAXBED, "stats", "scores.csv", "--permutations", "200")
        return rude(done) if done.code == 0 else unrefused(done, path.name)
    done = world.server.call(folder, JAXBED, *STATISTICS)
    if done.code:
        return unrefused(done, *_names(folder, path))
    return rude(done) or _other_lines(done.out, world.shown(*STATISTICS))


def _other_lines(found: str, expected: str) -> str:
    """What is shown now and was not before, or no more; warnings may be new."""
    lost = [line for line in expected.splitlines() if line not in found.splitlines()]
    return f"shows other scores; no more: {lost[0]!r}" if lost else ""


def _run(world: World, folder: pathlib.Path, workdir: str, command: str, path: pathlib.Path) -> str:
    """Evaluation or training in the damaged folder; what it leaves must be the undisturbed run's, but for the damaged file."""
    name = {"erm": "training", "jtt": "first stage"}[workdir]
    trains = command == "training"
    module, arguments = (COMMANDS[name].module, COMMANDS[name].arguments) if trains else (JAXBED, ("eval", workdir))
    done = world.server.call(folder, module, *arguments)
    if done.code:
        return unrefused(done, *_names(folder, path))
    if fault := rude(done):
        return fault
    expected = world.undisturbed(name).kept
    found = kept(folder / workdir, but=path)
    own = str(path.relative_to(folder / workdir))
    results = "responses/", "stages/first_network/outputs"
    answers = {place for place in expected if place.startswith(results) and not place.startswith(own)}
    odd = sorted(place for place in answers if found.get(place) != expected[place])
    if odd:
        return f"ends with code 0 and other results, {odd[0]} among them"
    if not own.startswith("responses/"):
        return ""
    done = world.server.call(folder, JAXBED, *STATISTICS)
    return unrefused(done, *_names(folder, path)) if done.code else _other_lines(done.out, world.shown(*STATISTICS))


def _sweep(world: World, pattern: str, rng: np.random.Generator) -> str:
    command = COMMANDS["sweep"]
    folder = world.case("sweep")
    path, how = _damage(folder, pattern, rng)
    done = world.server.call(folder, command.module, *command.arguments)
    fault = unrefused(done, *_names(folder, path)) if done.code else rude(done)
    if not done.code and not fault:
        found, expected = kept(folder / command.writes), world.undisturbed("sweep").kept
        odd = [place for place in expected if found.get(place) != expected[place]]
        fault = f"ends with code 0 and other results, {odd[0]} among them" if odd else ""
    return fault and f"{path.relative_to(folder)} {how}: {fault}"


def _names(folder: pathlib.Path, path: pathlib.Path) -> tuple[str, ...]:
    """What a message may call a damaged file: within a checkpoint the checkpoint, of what a run must agree with the run."""
    names = [path.name]
    if inside := re.search(r"checkpoints/(epochs|resume)(/\d+)?", str(path)):
        names += [inside[0], "lost epochs"]
    if path.name in ("config.json", "training_set.json"):  # it can be read, and says something else
        names += [
            f"{path.parent.relative_to(folder)} was trained on other images",
            f"{path.parent.relative_to(folder)} holds a run with other",
        ]
    return tuple(names)
