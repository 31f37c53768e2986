"""The files that evaluation leaves, as far as their form goes: answers of one epoch to one set, and what describes the sets.

WORKDIR/responses/<set>/<epoch>.npz   response [S, n] whole numbers, -1 where logits were not finite; seeds [S]; alive [S] bool;
                                      and, [S, n] floats, NaN for -1: confidence, the largest softmax of the logits that count; energy,
                                      minus the logarithm of their summed exponentials: of sets with anomalies;
                                      scores, [S, n, classes] float16: the logits, of multi-label sets and with eval.keep_scores;
                                      checkpoint and asked: what was answered by what; digest of all these
WORKDIR/responses/sets.json           see `evaluate`
"""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxbed.stats import names
from jaxbed.system import files

SMALL_BYTES, AMPLE = 2**24, 64  # of an array in any case; times as many answers as there should be
ANSWERS = ("response", "seeds", "alive")
SCORES = ("confidence", "energy")  # of the answers; older files have none
LOGITS = "scores"
MOST_CLASSES = 2**15  # responses have 16 bits
FORMS = {"data": dict, "classes": list, "sets": dict, "training_cells": list}  # of sets.json
TEXTS = ("role", "decision", "identity", "images", "real", "targets")  # of a set there


def read_answers(path: pathlib.Path, images: int, cure: str = "") -> dict[str, np.ndarray]:
    """All arrays of a file of answers. Raises ValueError, with the cure, for a damaged one, and where one was changed afterwards.

    A file with far more answers than its seeds can give to so many images is not unpacked.
    """

    def most_bytes(name: str, smaller: dict[str, np.ndarray]) -> int:
        of_answer = MOST_CLASSES * 2 if name == LOGITS else AMPLE * 8 if name in ("response", *SCORES) else 0
        return SMALL_BYTES + (of_answer * images * smaller["seeds"].size if "seeds" in smaller else 0)

    stored = files.read_arrays(path, cure, most_bytes)
    with files.guarded(path, cure):
        if missing := [name for name in ANSWERS if name not in stored]:
            raise files.Fault(f"it lacks {', '.join(missing)}")
        response, seeds, alive = (stored[name] for name in ANSWERS)
        kinds = response.dtype.kind in "iu" and seeds.dtype.kind in "iu" and alive.dtype.kind == "b"
        if not kinds or response.ndim != 2 or not seeds.shape == alive.shape == response.shape[:1]:
            shapes = ", ".join(f"{name} {stored[name].dtype} {stored[name].shape}" for name in ANSWERS)
            raise files.Fault(f"{shapes}; expected are int [S, n], int [S], bool [S]")
        for name in (name for name in SCORES if name in stored):
            if stored[name].dtype.kind != "f" or stored[name].shape != response.shape:
                raise files.Fault(f"{name} is {stored[name].dtype} {stored[name].shape}; expected is float {response.shape}")
        if LOGITS in stored and (stored[LOGITS].dtype != np.float16 or stored[LOGITS].shape[:-1] != response.shape):
            given = f"{stored[LOGITS].dtype} {stored[LOGITS].shape}"
            raise files.Fault(f"{LOGITS} is {given}; expected is float16 {(*response.shape, 'classes')}")
        if "digest" in stored and str(stored["digest"]) != digest(stored):
            raise files.Fault("its answers or seeds are not those that were written")
    return stored


def write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes what one epoch's checkpoint answered to one set, with a digest of it."""
    files.write_arrays(path, {**content, "digest": digest(content)})


def digest(content: Mapping[str, Any]) -> str:
    """Of everything else in a file of answers: a seed's number or an answer that was changed afterwards shows."""
    hashed = hashlib.sha256(f"{content['checkpoint']} {content['asked']}".encode())
    for name in ANSWERS:
        array = np.asarray(content[name])
        hashed.update(f"{name} {array.shape}".encode() + array.astype("<i8").tobytes())
    for name in (name for name in SCORES if name in content):
        hashed.update(name.encode() + np.asarray(content[name]).astype("<f4").tobytes())
    if LOGITS in content:
        hashed.update(f"{LOGITS} {np.shape(content[LOGITS])}".encode() + np.asarray(content[LOGITS]).astype("<f2").tobytes())
    return hashed.hexdigest()[:16]


def read_sets(path: pathlib.Path) -> dict:
    """The content of sets.json. Raises ValueError, with the cure, where it is damaged or has another form."""
    cure = f"delete it, then: jaxbed eval {path.parent.parent}"
    content = files.read_object(path, cure)
    with files.guarded(path, cure):
        if fault := _fault(content):
            raise files.Fault(fault)
    return content


def _fault(content: dict) -> str:
    """What is wrong with the form of a description, in words; empty if nothing is."""
    for name, kind in FORMS.items():
        if not isinstance(content.get(name, kind()), kind):
            return f"{name} is no {'object' if kind is dict else 'list'}"
    if missing := [name for name in ("data", "sets") if not content.get(name)]:
        return f"{missing[0]!r} is missing"
    if not isinstance(content["data"].get("name", ""), str) or not isinstance(content["data"].get("cue"), str):
        return "name or bias of the data is not text"
    for name, facts in content["sets"].items():
        if pathlib.PurePath(name).name != name or names.fault(name):
            return f"{name!r} is not the name of a set"
        if not isinstance(facts, dict) or "role" not in facts or not all(isinstance(facts.get(text, ""), str) for text in TEXTS):
            return f"of set {name!r} {', '.join(TEXTS)} must be text"
        if not isinstance(facts.get("classes", []), list):
            return f"classes of set {name!r} is not a list"
    cells = content.get("training_cells", [])
    if not all(isinstance(cell, list) and len(cell) == 3 and all(type(number) is int for number in cell) for cell in cells):
        return "training_cells is not a list of [label, bias, images]"
    return ""
