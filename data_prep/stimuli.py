"""Fetches the 16-class stimuli of Geirhos et al. from model-vs-human, into folders that `jaxbed.data.imagenet` reads.

    python data_prep/stimuli.py TARGET [--sets edge,sketch] [--from FOLDER_OF_ARCHIVES] [--sha256 sketch=DIGEST]
    python -m jaxbed.main ... --config.data.edge=TARGET/edge --config.data.cue_conflict=TARGET/cue-conflict

Each set is downloaded (interrupted downloads resume), unpacked to a temporary folder, checked, and only then moved to TARGET/<set>, which
is therefore always complete; a second run checks it again. --from uses archives <set>.tar.gz that are already on disk.

The checks cover the names, the number of images of each class (cue-conflict: each pair of shape and texture), and the content, whose git
tree must match the repository of texture-vs-shape. For cue-conflict only the first 8 digits of the tree are known; for sketch none, so its
images are decoded and the SHA-256 of its archive is printed. An archive with a given SHA-256 is accepted even with other content.

Licences: cue-conflict, edge and silhouette CC BY 4.0 (Geirhos et al., 2019); sketch is a part of ImageNet-Sketch (MIT).
"""

import argparse
import collections
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxbed.data import decode, image_files, records
from jaxbed.evaluation import decision_rules
from jaxbed.system import ending, files

URL = "https://github.com/bethgelab/model-vs-human/releases/download/v0.1/{}.tar.gz"
ATTEMPTS = 5  # in a row without progress
PAUSE_S = 2.0
MODES = (b"100755", b"100644")  # of files in a git tree; texture-vs-shape's are executable
MAX_FILE = 16 * 2**20  # bytes; the stimuli have 224 x 224 pixels
MAX_TOTAL = 2**30
MAX_MEMBERS = 20_000
SIXTEEN = tuple(decision_rules.SIXTEEN)
ANY = "|".join(SIXTEEN)
ONE_CUE = rf"(?P<shape>{ANY})/(?P=shape)([1-9]|10)\.png"


class Known(NamedTuple):
    """Known facts about a published set."""

    pattern: str  # of image names
    count: int  # images per class; for cue-conflict, per pair of shape and texture
    tree: str = ""  # the first digits of its git tree
    classes: str = ""  # and of each class folder's, in alphabetical order, to locate differences


SETS = {
    "cue-conflict": Known(rf"(?P<shape>{ANY})/(?P=shape)([1-9]|10)-(?P<texture>{ANY})[1-3]\.png", 5, "af5d1427"),
    "edge": Known(
        ONE_CUE,
        10,
        "b3b178f6fc0484c02b7f9c4e96cb4be6008ac892",
        "241b49 a459f1 86a03a 6ddde3 980e39 17a88f 4e71ae ec6758 f4ac6e 25cd25 a7408f d36b84 9e5b42 c4405a 30b3ab e1e020",
    ),
    "silhouette": Known(
        ONE_CUE,
        10,
        "23aee8dfaa66268e7c9746870eff68d933e88824",
        "2d997b 803a5d bdcfad b1ed93 3f251f c4ae8b a43a86 3fccc2 db1476 634a1a bf469c 792dc0 b1bde5 585382 cc99dd f53bef",
    ),
    "sketch": Known(rf"(?:[^_/]+_){{4}}(?P<shape>{ANY})_[^/]+\.(png|jpg|jpeg|JPEG)", 50),
}


def tree(folder: pathlib.Path, mode: bytes = MODES[0]) -> str:
    """SHA-1 of a folder as a git tree object, with that mode for all files: an identifier of its content."""
    entries = []
    for path in folder.iterdir():
        name = path.name.encode()
        if path.is_dir():
            entries.append((name + b"/", b"40000 " + name + b"\0" + bytes.fromhex(tree(path, mode))))
        else:
            entries.append((name, mode + b" " + name + b"\0" + _sha1(b"blob", path.read_bytes())))
    return _sha1(b"tree", b"".join(entry for _, entry in sorted(entries))).hex()


def _sha1(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha1(kind + b" %d\0" % len(content) + content, usedforsecurity=False).digest()


def faults(name: str, folder: pathlib.Path, published: bool = True) -> list[str]:
    """Messages on what is wrong with a set. published: also compare its content with the published one, as far as that is known."""
    known = SETS[name]
    if known.tree and any(tree(folder, mode).startswith(known.tree) for mode in MODES):
        return []
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    matches = {path: re.fullmatch(known.pattern, path) for path in paths}
    wrong = [f"{path!r} is not a file name of this set" for path, match in matches.items() if not match]
    numbers = collections.Counter(tuple(match.groupdict().values()) for match in matches.values() if match)
    pairs = [(shape, texture) for shape in SIXTEEN for texture in SIXTEEN] if name == "cue-conflict" else [(shape,) for shape in SIXTEEN]
    for pair in pairs:
        if numbers[pair] != known.count:
            lost = [path for i in range(1, 11) if (path := f"{pair[0]}/{pair[0]}{i}.png") not in paths] if known.pattern == ONE_CUE else []
            which = f" ({', '.join(lost)} missing)" if lost else ""
            wrong.append(f"{' with texture '.join(pair)}: {numbers[pair]} images instead of {known.count}{which}")
    for path, file in paths.items():
        try:
            decode.square(file.read_bytes(), 1, 0)
        except (OSError, ValueError, SyntaxError) as error:
            wrong.append(f"{path} cannot be read ({error})")
    if not wrong and published and known.tree:
        odd = [c for c, digits in zip(SIXTEEN, known.classes.split(), strict=False) if not tree(folder / c).startswith(digits)]
        where = f" (other images in {', '.join(odd)})" if odd else ""
        wrong.append(f"its content has git tree {tree(folder)}, but the published one has {known.tree}{where}")
    return wrong


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Unpacks a .tar.gz without hidden files and system folders; returns the first folder, at or below `folder`, with more than one entry.

    Raises ValueError for a damaged archive, and for members outside the folder, links, devices, or members that are too large.
    """
    folder.mkdir(parents=True)
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for number, member in enumerate(tar):
                parts = pathlib.PurePosixPath(member.name).parts
                total += member.size
                if ".." in parts or member.name.startswith("/"):
                    refused = "is outside the folder"
                elif not (member.isfile() or member.isdir()):
                    refused = "is neither a file nor a folder"
                elif member.size > MAX_FILE or total > MAX_TOTAL or number >= MAX_MEMBERS:
                    refused = f"exceeds {MAX_FILE:,} bytes per file, or {MAX_TOTAL:,} bytes or {MAX_MEMBERS:,} files in total"
                else:
                    refused = ""
                if refused:
                    raise ValueError(f"{archive} is not the published archive: {member.name!r} {refused}. Delete it and download it again")
                if not any(map(image_files.is_system, parts)):
                    tar.extract(member, folder, filter="data")
            while tar.fileobj.read(2**20):  # to the end, where gzip's checksum is
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(f"{archive} cannot be unpacked ({error}): delete it if it is damaged, and run again") from error
    while len(inner := list(folder.iterdir())) == 1 and inner[0].is_dir():
        folder = inner[0]
    return folder


def fetch(url: str, path: pathlib.Path) -> None:
    """Downloads a file unless it exists. Partial content is kept in PATH.part, from which a later call resumes. Raises OSError."""
    if path.is_file():
        return
    part = path.with_name(path.name + ".part")
    failures, reason = 0, ""
    while failures < ATTEMPTS:
        before = _size(part)
        try:
            if _receive(url, part):
                os.replace(part, path)
                return
            reason = "the connection was interrupted"
        except urllib.error.HTTPError as error:
            if error.code == 416:  # our partial content is not shorter than the file: it belongs to another file
                part.unlink(missing_ok=True)
            elif error.code < 500 and error.code not in (408, 429):
                raise OSError(
                    f"{url} cannot be downloaded ({error}): download it by other means and name its folder with --from"
                ) from error
            reason = str(error)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error)
        failures = 0 if _size(part) > before else failures + 1
        time.sleep(PAUSE_S if failures < ATTEMPTS else 0)
    kept = f"{_size(part):,} bytes are kept, rerun to resume" if part.is_file() else "run again"
    raise OSError(f"{url} cannot be downloaded ({reason}): {kept}, or download it by other means and name its folder with --from")


def _receive(url: str, part: pathlib.Path) -> bool:
    """Appends the missing content, and returns whether the file is now complete."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "jaxbed", **({"Range": f"bytes={have}-"} if have else {})})
    with urllib.request.urlopen(request, timeout=60) as answer:
        resumes = answer.status == 206
        have = have if resumes else 0  # this server sends everything again
        length = answer.headers["Content-Length"]
        total = have + int(length) if length else 0
        with part.open("ab" if resumes else "wb") as file:
            while block := answer.read(2**18):
                file.write(block)
                have += len(block)
                print(f"\r{url.rpartition('/')[2]}: {have / 1e6:.1f} of {f'{total / 1e6:.1f}' if total else '?'} MB", end="", flush=True)
    print()
    return have == total or not total


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def prepare(name: str, target: pathlib.Path, archives: pathlib.Path | None, digest: str) -> None:
    """Creates one set, or checks an existing one. Raises ValueError or OSError, which name the fault and the cure."""
    folder, record = target / name, target / f"{name}.json"
    if folder.exists():
        facts = files.read_object(record, f"delete it and {folder}, and run again") if record.is_file() else {}
        if facts.get("tree") != tree(folder) and (wrong := faults(name, folder) or ["an image has changed"] * bool(facts)):
            raise ValueError(f"{folder} is invalid: {_some(wrong)}. Delete it and run again")
        print(f"{name}: checked, nothing to do")
        return
    archive = (archives or target) / f"{name}.tar.gz"
    target.mkdir(parents=True, exist_ok=True)
    if archives is None:
        fetch(URL.format(name), archive)
    elif not archive.is_file():
        raise FileNotFoundError(f"{archive} is missing: download {URL.format(name)}, or run without --from")
    checksum = records.checksum(archive)
    if digest and digest != checksum:
        raise ValueError(f"{archive} has SHA-256 {checksum}, but --sha256 is {digest}: delete it and download it again")
    partial = target / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # left by an interrupted run
    try:
        content = unpack(archive, partial)
        if wrong := faults(name, content, published=not digest):
            cure = "delete the archive and run again" + ("" if digest else f", or accept its content with --sha256 {name}={checksum}")
            raise ValueError(f"{archive} does not contain this set: {_some(wrong)}. If it is damaged, {cure}")
        facts = {"archive": URL.format(name), "sha256": checksum, "tree": tree(content)}
        files.write(record, json.dumps(facts, indent=1) + "\n")
        os.replace(content, folder)  # last: an existing folder is complete
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if archives is None:
        archive.unlink()
    count = sum(path.is_file() for path in folder.rglob("*"))
    print(f"{name}: {count:,} images in {folder}; archive's SHA-256 {checksum}, content's git tree {facts['tree']}")


def _some(words: list[str]) -> str:
    return "; ".join(words[:5]) + (f"; and {len(words) - 5} more" if len(words) > 5 else "")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--sets", default=",".join(SETS), help="default: %(default)s")
    parser.add_argument("--from", dest="archives", type=pathlib.Path, help="folder of archives <set>.tar.gz; nothing is downloaded")
    parser.add_argument("--sha256", action="append", default=[], metavar="SET=DIGEST", help="of an archive; may be repeated")
    asked = parser.parse_args(argv)
    digests = dict(word.partition("=")[::2] for word in asked.sha256)
    names = asked.sets.split(",")
    for name in (*names, *digests):
        if name not in SETS:
            parser.error(f"{name!r} is not one of {', '.join(SETS)}")
    failed = False
    for name in names:
        try:
            prepare(name, asked.target, asked.archives, digests.get(name, "").lower())
        except (ValueError, OSError) as error:
            ending.tell(f"stimuli: {name}", error)
            failed = True
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
