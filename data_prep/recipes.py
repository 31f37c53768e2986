"""What commands that make a data set of many images have in common: the recipe that goes with it, and shards."""

import argparse
import hashlib
import json
import pathlib
from collections.abc import Iterable

from jaxbed.system import files


def keep(path: pathlib.Path, recipe: dict, published: dict, only_compare: bool) -> None:
    """Writes the recipe after comparing it with the existing one, to which keys may be added; prints how it differs from the published one.

    Raises ValueError for an existing recipe with other values.
    """
    before = files.read_object(path, "use another folder, or delete this one") if path.is_file() else {}
    if other := [f"{key} {before[key]}, not {value}" for key, value in recipe.items() if before.get(key, value) != value]:
        raise ValueError(f"{path} has {other[0]}: use the same settings as before, or another folder")
    recipe = {**before, **recipe}
    recipe["differs"] = [
        f"{key} is {recipe.get(key, 0)}, published {value}" for key, value in published.items() if recipe.get(key, 0) != value
    ]
    for words in recipe["differs"]:
        print(f"not the published recipe: {words}")
    if not only_compare:
        save(path, recipe)


def digest(names: Iterable[str]) -> str:
    """SHA-256 of names in their order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def save(path: pathlib.Path, facts: dict) -> None:
    files.write(path, json.dumps(facts, indent=1) + "\n")


def shard(parser: argparse.ArgumentParser, text: str) -> tuple[int, int]:
    """(k, n) of --shard k/n; ends the program if there is no such shard."""
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        parser.error(f"--shard {text} must be k/n with k from 1 to n")
    return int(number), int(count)
