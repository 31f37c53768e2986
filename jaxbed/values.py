"""What the fields of a configuration can hold, declared by their types: whole numbers, numbers of a range, words out of a list.

    class Config:
        p: Share = 0.5                          a number from 0 to 1
        units: Count = 32                       a whole number, 1 or more
        variant: Literal["paper", "biasbed"] = "paper"
        stages: tuple[Stage, ...] = (1, 2)

`check` looks at a whole configuration, `from_word` makes a value of a word of the command line. A type that says nothing more (float, Any)
is not an error: then a number need only be finite.
"""

import ast
import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

LARGEST = 2**31 - 1  # whole numbers of a compiled program have 32 bits
SHOWN = 80  # characters of a value
BOOLS = {"true": True, "1": True, "false": False, "0": False}


class Range(NamedTuple):
    """Which numbers are allowed: from `least` to `most`, without these two where `above` and `below` say so."""

    least: float
    most: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, number: float) -> bool:
        """Whether a number is within."""
        return (self.least < number if self.above else self.least <= number) and (number < self.most if self.below else number <= self.most)

    def __str__(self) -> str:
        low, high = f"above {self.least}" if self.above else f"{self.least}", f"below {self.most}" if self.below else f"{self.most}"
        if self.most == math.inf:
            return low if self.above else f"{low} or more"
        return f"{low}{' and' if self.above else ' to'} {high}" if self.below or not self.above else f"{low}, up to {high}"


class OneOf(tuple):
    """The numbers that are allowed. (A Literal holds no floats.)"""

    def holds(self, number: float) -> bool:
        """Whether a number is among them."""
        return number in self

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self))}"


Count = Annotated[int, Range(1, LARGEST)]
Whole = Annotated[int, Range(0, LARGEST)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
Share = Annotated[float, Range(0, 1)]  # a probability or a part of a whole
ShareBelowOne = Annotated[float, Range(0, 1, below=True)]
Stage = Literal[1, 2, 3, 4]  # of a ResNet
Dtype = Literal["float32", "bfloat16"]


def check(cfg: Any, path: str = "") -> None:
    """Raises ValueError, which names the field, its value and what is allowed, for the first value that its type forbids.

    `path`: what a dataclass within a configuration is called there, as "optim".
    """
    for field, value, hint, default in fields(cfg, path):
        if not _fits(value, hint):
            usual = "" if default is dataclasses.MISSING or not _fits(default, hint) else f" (default: {_shown(default)})"
            raise ValueError(f"{field} = {_shown(value)}: must be {allowed(hint)}{usual}")


def fields(cfg: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """(dotted name, value, type, default) of every field, but for dataclasses, of which the fields are given."""
    of_fields = hints(type(cfg))
    for field in dataclasses.fields(cfg):
        value, name, hint = getattr(cfg, field.name), f"{path}.{field.name}".lstrip("."), of_fields.get(field.name, Any)
        other = isinstance(hint, type) and dataclasses.is_dataclass(hint) and not isinstance(value, hint)
        if dataclasses.is_dataclass(value) and not other:
            yield from fields(value, name)
        else:
            yield name, value, hint, field.default


def refuse_unused(cfg: Any, names: tuple[str, ...], where: str, cure: str = "remove it", path: str = "method") -> None:
    """Raises ValueError for the first of these fields that differs from its default, as it has no effect with `where`."""
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        if field.name in names and value != field.default:
            raise ValueError(f"{path}.{field.name} = {_shown(value)} has no effect with {where}: {cure}")


def images_of(batch_size: int, share: float, field: str) -> int:
    """How many images a share of a batch is; `field` names it. Raises ValueError where this is 0 or not a whole number."""
    count = round(share * batch_size)
    if not count or abs(share * batch_size - count) > 1e-6 * batch_size:
        nearest = max(count, 1)
        cure = "take an even batch_size" if share == 0.5 else f"take {field} = {nearest / batch_size:g} for {nearest} of them"
        raise ValueError(f"batch_size = {batch_size}: {field} = {share} of it is {share * batch_size:g} images: {cure}")
    return count


def look_up(cfg: Any, field: str, asked: str) -> Any:
    """What a field, such as "optim.lr", holds. ValueError that begins with `asked` and names the fields there are where cfg lacks it."""
    holder, path = cfg, ""
    for name in field.split("."):
        if not dataclasses.is_dataclass(holder):
            raise ValueError(f"{asked}: {path} is a single value, {holder!r}, and has no field {name!r}")
        if name not in (known := [each.name for each in dataclasses.fields(holder)]):
            among = f" among {', '.join(known)}" if known else f": {path or 'it'} has no fields"
            raise ValueError(f"{asked}: no field {name!r}{among}")
        holder, path = getattr(holder, name), f"{path}.{name}".lstrip(".")
    return holder


def hint(cfg: Any, field: str) -> Any:
    """The type of a field that is there, see `values`."""
    holder, _, name = field.rpartition(".")
    return hints(type(look_up(cfg, holder, field) if holder else cfg)).get(name, Any)


def with_field(cfg: Any, field: str, value: Any) -> Any:
    """cfg with another value of one field, such as "optim.lr"."""
    name, _, rest = field.partition(".")
    return dataclasses.replace(cfg, **{name: with_field(getattr(cfg, name), rest, value) if rest else value})


def hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    try:
        of_fields = typing.get_type_hints(kind, include_extras=True)
        return {name: Any if getattr(hint, "_is_protocol", False) else hint for name, hint in of_fields.items()}  # for a type checker alone
    except NameError:  # a class of a user that names types which are there for a type checker alone
        return {}


def _fits(value: Any, hint: Any) -> bool:
    kind, (inner, *rest) = typing.get_origin(hint), typing.get_args(hint) or (None,)
    if kind is Annotated:
        return _fits(value, inner) and all(limit.holds(value) for limit in rest if isinstance(limit, Range | OneOf))
    if kind is Literal:
        return any(type(value) is type(word) and value == word for word in typing.get_args(hint))
    if kind is tuple:
        several = [inner] * len(value) if isinstance(value, tuple) and rest == [...] else [inner, *rest]
        return isinstance(value, tuple) and len(value) == len(several) and all(map(_fits, value, several))
    if kind in (types.UnionType, typing.Union):
        return any(_fits(value, each) for each in (inner, *rest))
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool) and _finite(value)
    if isinstance(hint, type) and hint is not Any:
        return isinstance(value, hint)
    numbers = value if isinstance(value, tuple) else (value,)
    return all(_finite(number) for number in numbers if isinstance(number, float))


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def allowed(hint: Any) -> str:
    """What a type allows, in words."""
    kind, (inner, *rest) = typing.get_origin(hint), typing.get_args(hint) or (None,)
    if kind is Annotated:
        return ", ".join([allowed(inner), *(str(limit) for limit in rest if isinstance(limit, Range | OneOf))])
    if kind is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    if kind is tuple:
        return f"several values in brackets, each {allowed(inner)}" if rest == [...] else f"{1 + len(rest)} values, each {allowed(inner)}"
    if kind in (types.UnionType, typing.Union):
        return " or ".join(map(allowed, (inner, *rest)))
    words: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    words[Any] = "anything but a number that is not finite"
    return words.get(hint) or str(getattr(hint, "__qualname__", hint))


def from_word(asked: str, field: str, word: str, hint: Any, now: Any) -> Any:
    """The value of a word of the command line for a field of a type, or, where that is Any, of the same kind as what it holds `now`.

    Raises ValueError, which begins with `asked`, for a word of another kind; ranges are left to `check`.
    """
    if hint is Any and now is not None:
        hint = types.GenericAlias(tuple, (_common(now), ...)) if isinstance(now, tuple) else type(now)
    try:
        return _parsed(word.strip(), hint)
    except (ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError):
        raise ValueError(f"{asked}: {field} must be {allowed(hint)}, as {_example(hint, now)}") from None


def _common(values: tuple) -> Any:
    kinds = {type(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else float if kinds == {int, float} else Any


def _parsed(word: str, hint: Any) -> Any:
    kind, (inner, *rest) = typing.get_origin(hint), typing.get_args(hint) or (None,)
    if kind is Annotated:
        return _parsed(word, inner)
    if kind is Literal:
        return {str(each): each for each in typing.get_args(hint)}[word]
    if kind is tuple:
        entries = _entries(word, inner)
        several = [inner] * len(entries) if rest == [...] else [inner, *rest]
        return tuple(_parsed(entry, each) for entry, each in zip(entries, several, strict=True))
    if hint is bool:
        return (
            {"true": True, "1": True, "false": False, "0": False}.get(word.lower())
            if word.lower() in ("true", "false", "0", "1")
            else int("")
        )
    return hint(word) if hint in (int, float, str) else ast.literal_eval(word)


def _entries(word: str, inner: Any) -> list[str]:
    """The entries of a tuple: (1, 2) or [1, 2] or 1,2; a word without brackets or quotes is one entry where entries are text."""
    if word[:1] in ("(", "[", "'", '"'):
        entries = ast.literal_eval(word)
        return [
            entry if isinstance(entry, str) else repr(entry) for entry in (entries if isinstance(entries, tuple | list) else (entries,))
        ]
    if inner is str:
        return [word] if word else []
    return [entry.strip() for entry in word.split(",")]


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _example(hint: Any, now: Any) -> str:
    return f'"{now}"' if isinstance(now, tuple) and now else "\"('one', 'two')\"" if isinstance(now, tuple) else _shown(now)
