"""Names of algorithms, datasets, metrics and families: one spelling for each, which one is meant, and how messages quote them."""

import difflib
import functools
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

LONGEST = 200  # most characters of a name
SHOWN = 80  # most characters that a message quotes
INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters, line and paragraph separators
JOINERS = "\u200c\u200d"  # format characters that the spelling of some scripts needs
SIGN = re.compile(r"(?:^|(?<=[=(,:\[])|(?<=\de))-(?=\.?\d)")  # the minus sign of a number
FORMULA = re.compile(r"'*[=+\-@\t\r]")
KINDS = ("algorithm", "dataset")  # what can be renamed


def clean(name: str) -> str:
    """The name in Unicode's composed form (NFC), without spaces around it."""
    return unicodedata.normalize("NFC", name).strip()


def fault(name: str) -> str:
    """What is wrong with a name, as words that follow it in a message; empty if it is valid."""
    if not clean(name):
        return "is empty; give it a name"
    if len(name) > LONGEST:
        return f"has {len(name):,} characters, at most {LONGEST} are allowed; shorten it"
    for letter in name:
        if unicodedata.category(letter) in INVISIBLE and letter not in JOINERS:
            description = unicodedata.name(letter, "a control character").lower()
            return f"holds an invisible character (U+{ord(letter):04X}, {description}); delete it"
    return ""


def as_cell(name: str) -> str:
    """The name as a cell of a CSV file. Spreadsheets execute a cell that begins like a formula unless an apostrophe precedes it (OWASP)."""
    return f"'{name}" if FORMULA.match(name) else name


def from_cell(text: str) -> str:
    """The name in a cell that `as_cell` made; any other text as it is."""
    return text[1:] if text[:1] == "'" and FORMULA.match(text) else text


@functools.lru_cache(maxsize=4096)  # names are compared each with each
def key(name: str) -> str:
    """Equal for names that differ only in case, spaces, `_`, `-`, invisible characters or Unicode form.

    Minus signs of numbers (lr=-1, 1e-4) and the gap between two numbers (1_1 is not 11) count.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    text = "".join("-" if letter == "−" or unicodedata.category(letter) == "Pd" else letter for letter in text)
    text = "".join(letter for letter in text if unicodedata.category(letter) != "Cf")
    text = re.sub(r"(?<=\d)[\s_-]+(?=\d)", "\x1f", SIGN.sub("−", text))
    return re.sub(r"[ \t\r\n\f\v\xa0_-]+", "", text) or name


def find(asked: str, known: Iterable[str]) -> str | None:
    """The known name that `asked` refers to: an equal one, or the only one with the same key; None if there is none."""
    known, asked = list(known), clean(asked)
    alike = [name for name in known if key(name) == key(asked)]
    return asked if asked in known else alike[0] if len(alike) == 1 else None


def find_each(asked: Iterable[str], known: Sequence[str], message: str) -> list[str]:
    """The known names that `asked` refers to, each once. Raises ValueError, beginning with `message`, for an unknown name or none."""
    texts = [name for name in map(clean, asked) if name]
    unknown = [text for text in texts if find(text, known) is None]
    if unknown or not texts:
        raise ValueError(f"{message} {listed(map(repr, unknown)) or 'nothing'}; {choice(''.join(unknown[:1]), known)}")
    return list(dict.fromkeys(name for text in texts if (name := find(text, known)) is not None))


def choice(asked: str, known: Iterable[str]) -> str:
    """'did you mean erm? available: erm, lff', for a message about an unknown name."""
    known = list(map(str, known))
    by_key = {key(name): name for name in known}
    near = difflib.get_close_matches(key(asked), by_key, n=1)
    return (f"did you mean {by_key[near[0]]}? " if near else "") + f"available: {listed(known)}"


def cut(text: object) -> str:
    """At most SHOWN characters of the text; invisible ones as Python escapes them."""
    text = str(text)
    text = text if len(text) <= SHOWN else text[:SHOWN] + "…"
    return text if text.isprintable() else repr(text)[1:-1]


def quoted(text: object) -> str:
    """'text', cut."""
    text = str(text)
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def listed(names: Iterable[object], most: int = SHOWN) -> str:
    """'a, b, c and 4 more': at least one, then as many as fit into `most` characters."""
    texts = list(map(cut, names))
    count = next((count for count in range(len(texts), 1, -1) if len(", ".join(texts[:count])) <= most), 1)
    return ", ".join(texts[:count]) + (f" and {len(texts) - count} more" if len(texts) > count else "")


def first_few(names: Iterable, most: int = 8) -> str:
    """'a, b, c and 4 more'."""
    names = list(map(str, names))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def refuse_alike(kind: str, given: Iterable[tuple[str, str]]) -> None:
    """Raises ValueError for two names, each given with its source, that a reader would take for one."""
    first: dict[str, tuple[str, str]] = {}
    for name, source in given:
        other, its_source = first.setdefault(key(name), (name, source))
        if other == name:
            continue
        where = f"{source}: " if source == its_source else f"{its_source} and {source}: "
        cure = f"use one spelling in {source}"
        if kind in KINDS:
            cure = f"if they are the same, --rename {word(name, other)}; if not, --rename {word(name, 'ANOTHER NAME')}"
        raise ValueError(f"{where}{kind}s {quoted(other)} and {quoted(name)} differ only in case, spaces, _, - or Unicode form: {cure}")


def word(old: str, new: str) -> str:
    """old=new as a shell needs it."""
    return shlex.quote(f"{old}={new}")


def renames(texts: Sequence[str], known: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
    """{kind: {old: new}} of the texts OLD=NEW; `known` has the names of each kind, the first kind that has OLD is meant.

    OLD is the longest known name before a '='. Raises ValueError for an unknown OLD, one given twice, and a NEW that is no name.
    """
    new_names: dict[str, dict[str, str]] = {kind: {} for kind in known}
    for text in texts:
        positions = [position for position, letter in enumerate(text) if letter == "="][::-1]
        splits = [(text[:position], text[position + 1 :]) for position in positions]
        pairs = [(kind, old, new) for kind, its_names in known.items() for left, new in splits if (old := find(left, its_names))]
        if not pairs:
            choices = "; ".join(f"{kind}s {listed(sorted(its_names))}" for kind, its_names in known.items() if its_names)
            raise ValueError(f"--rename {cut(text)}: write OLD=NEW, where OLD is one of the {choices}")
        kind, old, new = pairs[0][0], pairs[0][1], clean(pairs[0][2])
        if sum(old in known[each] for each in KINDS) > 1:
            raise ValueError(f"--rename {cut(text)}: {quoted(old)} is both an algorithm and a data set; rename one of them in the file")
        if old in new_names[kind]:
            raise ValueError(f"--rename {cut(text)}: {quoted(old)} is renamed twice; give it one name")
        if wrong := fault(new):
            raise ValueError(f"--rename {cut(text)}: the new name {wrong}")
        new_names[kind][old] = new
    return new_names
