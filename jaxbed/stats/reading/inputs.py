"""Reads all inputs of `jaxbed stats` under one set of names, and identifies each file by its SHA-256."""

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.reading import columns, records, workdirs
from jaxbed.stats.reading import roles as role_file


class Inputs(NamedTuple):
    """`roles`, `table`, `last`: arguments of analysis.analyse. `files`: `identity` of each input."""

    frame: pd.DataFrame
    roles: pd.DataFrame | None
    table: pd.DataFrame | None
    last: pd.DataFrame | None
    files: list[dict]


def read(asked: argparse.Namespace) -> Inputs:
    """All inputs on the command line, with names changed by --rename.

    Raises ValueError as the readers do, for a --rename of a name that no input has, and for names in the inputs that differ only
    in case, spaces or the like.
    """
    chosen = columns.parse(asked.columns)
    parts = [records.read(path, chosen) for path in asked.paths]
    last = [records.read(asked.last_scores, chosen)] if asked.last_scores else []
    roles = role_file.read(asked.roles) if asked.roles else None
    table = records.read_table(asked.table) if asked.table else None
    known = list(_known(parts + last, roles, table, asked))
    new = names.renames(asked.rename, _by_kind(known, parts))
    parts, last = ([_renamed(part, new) for part in some] for some in (parts, last))
    roles = None if roles is None else role_file.renamed(roles, new["algorithm"], new["dataset"])
    if table is not None:
        table = table.assign(**{kind: table[kind].replace(new[kind]) for kind in names.KINDS})
    frame = records.join(parts)
    for kind in names.KINDS:
        names.refuse_alike(kind, ((name, source) for which, name, source in _known(parts + last, roles, table, asked) if which == kind))
    files = [identity(part.path, "workdir" if part.source else "scores") for part in parts]
    others = (("roles", asked.roles), ("table", asked.table), ("last scores", asked.last_scores))
    files += [identity(Path(path), what) for what, path in others if path]
    for file, part in zip(files, parts, strict=False):
        if part.source:
            file |= {"algorithm": part.source["algorithm"], "runs": part.source["runs"], "renamed": part.source["renamed"]}
    return Inputs(frame, roles, table, records.join(last) if last else None, files)


def _known(parts: list, roles: pd.DataFrame | None, table: pd.DataFrame | None, asked: argparse.Namespace) -> Iterator[tuple]:
    """(kind, name, source) of all names, those of the scores first."""
    for part in parts:
        yield from ((kind, name, str(part.path)) for kind in names.KINDS for name in part.frame[kind].unique())
    if roles is not None:
        yield from (("dataset", name, asked.roles) for name in roles["dataset"])
        yield from (("algorithm", name, asked.roles) for name in role_file.algorithms(roles))
    if table is not None:
        yield from ((kind, name, asked.table) for kind in names.KINDS for name in table[kind].unique())


def _by_kind(known: list[tuple], parts: list[records.Scores]) -> dict[str, list[str]]:
    names_of = {kind: list(dict.fromkeys(name for which, name, _ in known if which == kind)) for kind in names.KINDS}
    return names_of | {"workdir": [form for part in parts if part.source for form in workdirs.forms(part.path)]}


def _renamed(part: records.Scores, new: dict[str, dict[str, str]]) -> records.Scores:
    """The scores with the new names; `source["renamed"]` maps these, by kind, to the names in the workdir's files."""
    of_path = next((new["workdir"][form] for form in workdirs.forms(part.path) if form in new["workdir"]), None)
    algorithms = {name: of_path for name in part.frame["algorithm"].unique()} if of_path else new["algorithm"]
    both = {"algorithm": algorithms, "dataset": new["dataset"]}
    if not any(both.values()):
        return part._replace(source=part.source and {**part.source, "renamed": {}})
    attrs, frame = part.frame.attrs, part.frame
    alone = frame["family"] == frame["dataset"]
    frame = frame.assign(**{kind: frame[kind].replace(mapping) for kind, mapping in both.items()})
    frame["family"] = frame["family"].where(~alone, frame["dataset"])
    frame.attrs = attrs
    source = part.source and {
        **part.source,
        "algorithm": algorithms.get(part.source["algorithm"], part.source["algorithm"]),
        "runs": [[algorithms.get(name, name), run] for name, run in part.source["runs"]],
        "datasets": [new["dataset"].get(name, name) for name in part.source["datasets"]],
        "sets": {new["dataset"].get(name, name): facts for name, facts in part.source["sets"].items()},
        "renamed": {kind: {new: old for old, new in mapping.items()} for kind, mapping in both.items()},
    }
    return records.Scores(part.path, frame, source)


def identity(path: Path, what: str) -> dict:
    """Path, kind and SHA-256 of an input, for stats.json.

    For a workdir the SHA-256 is that of config.json, and `code` lists the code versions in its log, each once: commit of the user's
    checkout, digest of the package, versions of packages. Variants share the log of the parent folder.
    """
    if what != "workdir":
        return {"path": str(path), "what": what, "sha256": _sha256(path)}
    config = path / "config.json"
    above = [path.parent] if (path.parent / "config.json").is_file() else []
    log = next((folder / "log.jsonl" for folder in (path, *above) if (folder / "log.jsonl").is_file()), None)
    sha256 = _sha256(config) if config.is_file() else None
    return {"path": str(path), "what": what, "sha256": sha256, "code": _code(log) if log else []}


def _code(log: Path) -> list[dict]:
    versions = []
    with log.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if '"header"' not in line:
                continue
            try:
                header = json.loads(line)
            except (ValueError, RecursionError):  # truncated when its process was killed, or damaged
                continue
            if isinstance(header, dict) and header.get("kind") == "header" and isinstance(header.get("versions"), dict | None):
                code = {name: header.get(name) for name in ("commit", "source", "versions")}
                versions += [code] * (code not in versions)
    return versions


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
