"""The 16-class stimuli of Geirhos et al., as model-vs-human publishes them, in folders that `jaxbed.data.imagenet` reads.

    python data_prep/stimuli.py TARGET [--sets edge,sketch] [--from FOLDER_OF_ARCHIVES] [--sha256 sketch=DIGEST]
    python -m jaxbed.main ... --config.data.edge=TARGET/edge --config.data.cue_conflict=TARGET/cue-conflict

Each set is fetched (a download that broke off goes on where it stopped), unpacked beside its place, checked, and only then moved there, so
that a folder TARGET/<set> is whole; a second run checks it again. --from takes archives <set>.tar.gz that are already on disk.

What is checked: the names, the number of images of every class (cue-conflict: of every pair of shape and texture), and the content, whose
git tree must be the one of texture-vs-shape's repository. Of cue-conflict's tree only the first 8 digits are known here; of sketch none, so
its images are decoded, and the SHA-256 of its archive is printed. An archive whose SHA-256 is given is accepted with other content too.

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
ATTEMPTS = 5  # in a row that bring nothing
PAUSE_S = 2.0
MODES = (b"100755", b"100644")  # of files in a git tree; texture-vs-shape's are executable
MAX_FILE = 16 * 2**20  # bytes; the stimuli have 224 x 224 pixels
MAX_TOTAL = 2**30
MAX_MEMBERS = 20_000
SIXTEEN = tuple(decision_rules.SIXTEEN)
ANY = "|".join(SIXTEEN)
ONE_CUE = rf"(?P<shape>{ANY})/(?P=shape)([1-9]|10)\.png"


class Known(NamedTuple):
    """What is known of a set before it is seen."""

    pattern: str  # of a image's name
    count: int  # images of a class; of cue-conflict, of a pair of shape and texture
    tree: str = ""  # the first digits of its git tree
    classes: str = ""  # and of each class's, in alphabetical order: they tell where content differs


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
    """SHA-1 of a folder as git's tree object, were all its files of that mode: a name for content."""
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
    """What is wrong with a set, in words; nothing if it is whole. published: compare its content too, as far as the published is known."""
    known = SETS[name]
    if known.tree and any(tree(folder, mode).startswith(known.tree) for mode in MODES):
        return []
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    matches = {path: re.fullmatch(known.pattern, path) for path in paths}
    wrong = [f"{path!r} is no name of this set" for path, match in matches.items() if not match]
    numbers = collections.Counter(tuple(match.groupdict().values()) for match in matches.values() if match)
    pairs = [(shape, texture) for shape in SIXTEEN for texture in SIXTEEN] if name == "cue-conflict" else [(shape,) for shape in SIXTEEN]
    for pair in pairs:
        if numbers[pair] != known.count:
            lost = [path for i in range(1, 11) if (path := f"{pair[0]}/{pair[0]}{i}.png") not in paths] if known.pattern == ONE_CUE else []
            which = f" ({', '.join(lost)} missing)" if lost else ""
            wrong.append(f"{' with texture '.join(pair)}: {numbers[pair]} images and not {known.count}{which}")
    for path, file in paths.items():
        try:
            decode.square(file.read_bytes(), 1, 0)
        except (OSError, ValueError, SyntaxError) as error:
            wrong.append(f"{path} cannot be read ({error})")
    if not wrong and published and known.tree:
        odd = [c for c, digits in zip(SIXTEEN, known.classes.split(), strict=False) if not tree(folder / c).startswith(digits)]
        where = f" (other images in {', '.join(odd)})" if odd else ""
        wrong.append(f"its content has git tree {tree(folder)}, and the published one is {known.tree}{where}")
    return wrong


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Unpacks a .tar.gz and returns the folder, at or below `folder`, where its content branches.

    Hidden files and system folders stay out.

    Raises ValueError for a damaged archive, and for members that leave the folder, are links or devices, or are too large.
    """
    folder.mkdir(parents=True)
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for number, member in enumerate(tar):
                parts = pathlib.PurePosixPath(member.name).parts
                total += member.size
                if ".." in parts or member.name.startswith("/"):
                    refused = "leaves the folder"
                elif not (member.isfile() or member.isdir()):
                    refused = "is neither file nor folder"
                elif member.size > MAX_FILE or total > MAX_TOTAL or number >= MAX_MEMBERS:
                    refused = f"is beyond {MAX_FILE:,} bytes a file, {MAX_TOTAL:,} bytes or {MAX_MEMBERS:,} files in all"
                else:
                    refused = ""
                if refused:
                    raise ValueError(f"{archive} is not unpacked: {member.name!r} {refused}. This is not the published archive")
                if not any(map(image_files.is_system, parts)):
                    tar.extract(member, folder, filter="data")
            while tar.fileobj.read(2**20):  # to the end, where gzip's checksum is
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(f"{archive} cannot be unpacked ({error}): if it is damaged, delete it and run again") from error
    while len(inner := list(folder.iterdir())) == 1 and inner[0].is_dir():
        folder = inner[0]
    return folder


def fetch(url: str, path: pathlib.Path) -> None:
    """Downloads a file unless it is there. What has arrived stays in PATH.part, and a later call goes on after it. Raises OSError."""
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
            reason = "the connection broke off"
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing lies behind what we have: it is of another file
                part.unlink(missing_ok=True)
            elif error.code < 500 and error.code not in (408, 429):
                raise OSError(f"{url} cannot be fetched ({error}): fetch it by other means and name its folder with --from") from error
            reason = str(error)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error)
        failures = 0 if _size(part) > before else failures + 1
        time.sleep(PAUSE_S if failures < ATTEMPTS else 0)
    kept = f"{_size(part):,} bytes are kept, run again to go on" if part.is_file() else "run again"
    raise OSError(f"{url} cannot be fetched ({reason}): {kept}, or fetch it by other means and name its folder with --from")


def _receive(url: str, part: pathlib.Path) -> bool:
    """Appends what is missing, and returns whether that is all."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "jaxbed", **({"Range": f"bytes={have}-"} if have else {})})
    with urllib.request.urlopen(request, timeout=60) as answer:
        goes_on = answer.status == 206
        have = have if goes_on else 0  # a server that sends all again
        length = answer.headers["Content-Length"]
        total = have + int(length) if length else 0
        with part.open("ab" if goes_on else "wb") as file:
            while block := answer.read(2**18):
                file.write(block)
                have += len(block)
                print(f"\r{url.rpartition('/')[2]}: {have / 1e6:.1f} of {f'{total / 1e6:.1f}' if total else '?'} MB", end="", flush=True)
    print()
    return have == total or not total


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def prepare(name: str, target: pathlib.Path, archives: pathlib.Path | None, digest: str) -> None:
    """Makes one set, or checks the one that is there. Raises ValueError or OSError, naming what is wrong and the cure."""
    folder, record = target / name, target / f"{name}.json"
    if folder.exists():
        facts = files.read_object(record, f"delete it and {folder}, and run again") if record.is_file() else {}
        if facts.get("tree") != tree(folder) and (wrong := faults(name, folder) or ["a image has changed"] * bool(facts)):
            raise ValueError(f"{folder} is not as it must be: {_some(wrong)}. Delete it and run again")
        print(f"{name}: checked, nothing to do")
        return
    archive = (archives or target) / f"{name}.tar.gz"
    target.mkdir(parents=True, exist_ok=True)
    if archives is None:
        fetch(URL.format(name), archive)
    elif not archive.is_file():
        raise FileNotFoundError(f"{archive} is missing: fetch {URL.format(name)}, or run without --from")
    checksum = records.checksum(archive)
    if digest and digest != checksum:
        raise ValueError(f"{archive} has SHA-256 {checksum}, and --sha256 says {digest}: delete it and fetch it again")
    partial = target / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was stopped
    try:
        content = unpack(archive, partial)
        if wrong := faults(name, content, published=not digest):
            cure = "delete the archive and run again" + ("" if digest else f", or accept its content with --sha256 {name}={checksum}")
            raise ValueError(f"{archive} does not hold this set: {_some(wrong)}. If it is damaged, {cure}")
        facts = {"archive": URL.format(name), "sha256": checksum, "tree": tree(content)}
        files.write(record, json.dumps(facts, indent=1) + "\n")
        os.replace(content, folder)  # last: a folder that is there is whole
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
    parser.add_argument("--from", dest="archives", type=pathlib.Path, help="folder of archives <set>.tar.gz; nothing is fetched")
    parser.add_argument("--sha256", action="append", default=[], metavar="SET=DIGEST", help="of an archive; may be repeated")
    asked = parser.parse_args(argv)
    digests = dict(word.partition("=")[::2] for word in asked.sha256)
    names = asked.sets.split(",")
    for name in (*names, *digests):
        if name not in SETS:
            parser.error(f"{name!r} is no set: {', '.join(SETS)}")
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
