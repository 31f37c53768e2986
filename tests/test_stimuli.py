"""Fetching stimuli: downloads that break off, archives that lie or are damaged, content that is not the published one."""

import http.server
import io
import json
import shutil
import tarfile
import threading

import pytest
from PIL import Image

from data_prep import stimuli
from jaxbed.data import imagenet

SIXTEEN = stimuli.SIXTEEN


def png(shade):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, "png")
    return buffer.getvalue()


EDGE = {f"edge/{name}/{name}{i}.png": png(16 * row + i) for row, name in enumerate(SIXTEEN) for i in range(1, 11)}
SKETCH = {
    f"sketch/dnn/session-1/{50 * row + i:04d}_ske_dnn_0_{name}_00_{name}-0001-sketch-{i}.png": png(row)
    for row, name in enumerate(SIXTEEN)
    for i in range(50)
}


def archive(path, files, *members):
    """A .tar.gz of files (name -> bytes), and of members as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return path


@pytest.fixture
def known(monkeypatch, tmp_path):
    """The made-up edge set becomes the published one."""
    folder = stimuli.unpack(archive(tmp_path / "made.tar.gz", EDGE), tmp_path / "made")
    classes = " ".join(stimuli.tree(folder / name)[:6] for name in SIXTEEN)
    monkeypatch.setitem(stimuli.SETS, "edge", stimuli.SETS["edge"]._replace(tree=stimuli.tree(folder), classes=classes))


def run(target, *options):
    return stimuli.main([str(target), *map(str, options)])


def local(tmp_path, files, *members, name="edge"):
    """Runs on an archive on disk."""
    archive(tmp_path / "archives" / f"{name}.tar.gz", files, *members)
    return run(tmp_path / "target", "--sets", name, "--from", tmp_path / "archives")


# Content


def test_tree_is_gits(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a/c", "a.b", "a0"):  # git sorts the folder behind a.b, as if it were named "a/"
        (tmp_path / name).write_text("hello\n")
    assert stimuli.tree(tmp_path, b"100644") == "f6fbd812063288e8fb57b6018dde4254ad231f37"  # of git write-tree
    assert stimuli.tree(tmp_path) == "bd79ba9c52cfea256f15fc36d015da521476c07d"


@pytest.mark.parametrize("name", ["edge", "silhouette"])
def test_real_stimuli_are_the_published_trees(shared_data, tmp_path, name):
    folder = tmp_path / name
    shutil.copytree(shared_data / "stimuli" / name, folder, copy_function=shutil.copyfile)
    assert stimuli.tree(folder) == stimuli.SETS[name].tree and stimuli.faults(name, folder) == []
    for path in (folder, folder / "knife", folder / "oven"):
        path.chmod(0o755)
    (folder / "knife" / "knife3.png").unlink()
    (folder / "oven" / "oven1.png").write_bytes(b"nothing")
    missing, unreadable = stimuli.faults(name, folder)
    assert missing == "knife: 9 images instead of 10 (knife/knife3.png missing)"
    assert unreadable.startswith("oven/oven1.png cannot be read")
    shutil.copyfile(folder / "knife" / "knife2.png", folder / "knife" / "knife3.png")
    shutil.copyfile(folder / "oven" / "oven2.png", folder / "oven" / "oven1.png")
    (other,) = stimuli.faults(name, folder)
    assert other.endswith("(other images in knife, oven)")


def test_real_cue_conflict_names_are_counted_by_pair(shared_data):
    found = stimuli.faults("cue-conflict", shared_data / "stimuli" / "cue-conflict")  # 128 of 1,280
    assert len(found) >= 16 * 8 and all(" with texture " in fault for fault in found)
    assert sum(5 - int(fault.split(": ")[1].split()[0]) for fault in found) == 1280 - 128


# From archives on disk


def test_a_set_is_unpacked_once_checked_and_readable(known, tmp_path, capsys):
    assert local(tmp_path, {**EDGE, "edge/._bear.png": b"x", "__MACOSX/edge/x.png": b"x", "edge/bear/@eaDir/bear1.png/x.png": b"x"}) == 0
    assert "edge: 160 images in" in capsys.readouterr().out
    target = tmp_path / "target"
    assert sorted(path.name for path in target.iterdir()) == ["edge", "edge.json"]
    (tmp_path / "archives" / "edge.tar.gz").unlink()
    assert run(target, "--sets", "edge", "--from", tmp_path / "archives") == 0 and "nothing to do" in capsys.readouterr().out
    (target / "edge.json").unlink()
    assert run(target, "--sets", "edge", "--from", tmp_path / "archives") == 0  # the content speaks for itself
    (target / "edge" / "car" / "car7.png").write_bytes(png(200))
    assert run(target, "--sets", "edge") == 2
    assert "(other images in car). Delete it and run again" in capsys.readouterr().err
    for image in (target / "edge").iterdir():
        assert image.is_dir() and not (target / ".edge.partial").exists()


def test_sketch_is_known_by_names_and_counts_and_then_by_its_record(tmp_path, capsys):
    assert local(tmp_path, SKETCH, name="sketch") == 0
    folder = tmp_path / "target" / "sketch"
    facts = json.loads((tmp_path / "target" / "sketch.json").read_text())
    assert f"archive's SHA-256 {facts['sha256']}" in capsys.readouterr().out
    (tmp_path / "train").mkdir()
    size = imagenet.Size(8, 0)
    found = imagenet.image_files.open_flat(folder, size, lambda file: file.split("_")[4], SIXTEEN)  # as imagenet reads it
    assert len(found.labels) == 800 and set(found.labels) == set(range(16))
    next(folder.iterdir()).write_bytes(png(99))
    assert run(tmp_path / "target", "--sets", "sketch") == 2 and "an image has changed" in capsys.readouterr().err
    lacking = dict(list(SKETCH.items())[1:])
    shutil.rmtree(tmp_path / "target")
    assert local(tmp_path, lacking, name="sketch") == 2
    assert "airplane: 49 images instead of 50" in capsys.readouterr().err


def test_other_content_needs_the_archives_digest(known, tmp_path, capsys):
    other = {**EDGE, "edge/truck/truck4.png": png(0)}
    assert local(tmp_path, other) == 2
    message = capsys.readouterr().err
    assert "(other images in truck)" in message and not (tmp_path / "target" / "edge").exists()
    digest = message.partition("--sha256 ")[2].split()[0]
    source = ("--sets", "edge", "--from", tmp_path / "archives", "--sha256")
    assert run(tmp_path / "target", *source, "edge=00") == 2 and "--sha256 is 00" in capsys.readouterr().err
    assert run(tmp_path / "target", *source, digest) == 0
    assert run(tmp_path / "target", *source[:4]) == 0  # the record vouches for it from now on


def link(name, kind, to="/etc/passwd"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


def large(name, size):
    member = tarfile.TarInfo(name)
    member.size = size
    return member


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (large("../escaped.png", 1), "is outside the folder"),
        (large("edge/../../escaped.png", 1), "is outside the folder"),
        (large("/escaped.png", 1), "is outside the folder"),
        (link("edge/link.png", tarfile.SYMTYPE), "is neither a file nor a folder"),
        (link("edge/link.png", tarfile.LNKTYPE), "is neither a file nor a folder"),
        (link("edge/device.png", tarfile.CHRTYPE), "is neither a file nor a folder"),
        (link("edge/device.png", tarfile.BLKTYPE), "is neither a file nor a folder"),
        (link("edge/pipe.png", tarfile.FIFOTYPE), "is neither a file nor a folder"),
        (large("edge/huge.png", stimuli.MAX_FILE + 1), "exceeds"),
    ],
)
def test_malicious_archives_are_refused(tmp_path, capsys, member, reason):
    before = set(tmp_path.rglob("*"))
    assert local(tmp_path, {}, member) == 2
    error = capsys.readouterr().err
    assert f"{member.name!r} {reason}" in error and "not the published archive" in error
    new = {str(path.relative_to(tmp_path)) for path in set(tmp_path.rglob("*")) - before}
    assert new == {"archives", "archives/edge.tar.gz", "target"}


@pytest.mark.parametrize("limit", ["MAX_TOTAL", "MAX_MEMBERS"])
def test_archives_too_large_in_all_are_refused(known, tmp_path, capsys, monkeypatch, limit):
    monkeypatch.setattr(stimuli, limit, 100)
    assert local(tmp_path, EDGE) == 2 and "exceeds" in capsys.readouterr().err
    assert not list((tmp_path / "target").iterdir())


@pytest.mark.parametrize("damage", ["cut", "flip", "nothing"])
def test_damaged_archives_are_named(known, tmp_path, capsys, damage):
    path = archive(tmp_path / "archives" / "edge.tar.gz", EDGE)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-6] ^= 1  # in gzip's checksum, behind all that tarfile reads
    path.write_bytes({"cut": content[: len(content) // 2], "flip": content, "nothing": b"<html>"}[damage])
    assert run(tmp_path / "target", "--sets", "edge", "--from", tmp_path / "archives") == 2
    assert "edge.tar.gz cannot be unpacked" in capsys.readouterr().err and not (tmp_path / "target" / "edge").exists()
    archive(path, EDGE)
    assert run(tmp_path / "target", "--sets", "edge", "--from", tmp_path / "archives") == 0


def test_one_failing_set_does_not_stop_the_others(known, tmp_path, capsys):
    archive(tmp_path / "archives" / "edge.tar.gz", EDGE)
    assert run(tmp_path / "target", "--sets", "silhouette,edge", "--from", tmp_path / "archives") == 2
    assert "silhouette.tar.gz is missing: download https://" in capsys.readouterr().err and (tmp_path / "target" / "edge").is_dir()
    with pytest.raises(SystemExit):
        run(tmp_path / "target", "--sets", "edges")
    assert "'edges' is not one of cue-conflict, edge, silhouette, sketch" in capsys.readouterr().err


# Downloads


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `content`; sends only the next of `cuts` many bytes of an answer, then hangs up; 0: an error 500."""

    content = b""
    cuts: tuple[int, ...] = ()
    ranges = True

    def do_GET(self):
        self.seen.append(self.headers.get("Range"))
        cut = self.cuts.pop(0) if self.cuts else None
        if cut == 0 or self.path != "/edge.tar.gz":
            return self.send_error(500 if cut == 0 else 404)
        start = int(self.headers["Range"][6:-1]) if self.ranges and "Range" in self.headers else 0
        if start >= len(self.content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start:][:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(known, tmp_path, monkeypatch):
    handler = type("Handler", (Server,), {"content": archive(tmp_path / "served.tar.gz", EDGE).read_bytes(), "cuts": [], "seen": []})
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setattr(stimuli, "URL", f"http://127.0.0.1:{running.server_port}/{{}}.tar.gz")
    monkeypatch.setattr(stimuli, "PAUSE_S", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield handler
    running.shutdown()
    running.server_close()


def test_a_download_that_breaks_off_goes_on_where_it_stopped(server, tmp_path, capsys):
    server.cuts += [1000, 0, 500]
    assert run(tmp_path / "target", "--sets", "edge") == 0
    assert server.seen == [None, "bytes=1000-", "bytes=1000-", "bytes=1500-"]
    out = capsys.readouterr().out
    assert "\redge.tar.gz: " in out and "edge: 160 images" in out
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["edge", "edge.json"]
    assert run(tmp_path / "target", "--sets", "edge") == 0 and len(server.seen) == 4


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    server.cuts, server.ranges = [1000], False
    assert run(tmp_path / "target", "--sets", "edge") == 0
    assert server.seen == [None, "bytes=1000-"]


def test_a_part_of_another_file_is_discarded(server, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "edge.tar.gz.part").write_bytes(bytes(len(server.content) + 1))
    assert run(tmp_path / "target", "--sets", "edge") == 0
    assert server.seen[-1] is None


def test_a_download_that_fails_says_what_to_do_and_a_later_run_goes_on(server, tmp_path, capsys):
    server.cuts += [700] + [0] * stimuli.ATTEMPTS
    assert run(tmp_path / "target", "--sets", "edge") == 2
    error = capsys.readouterr().err
    assert "700 bytes are kept, rerun to resume, or download it by other means" in error and "500" in error
    assert run(tmp_path / "target", "--sets", "edge") == 0 and server.seen[-1] == "bytes=700-"
    assert run(tmp_path / "target", "--sets", "sketch") == 2
    assert "404" in (error := capsys.readouterr().err) and "--from" in error and len(server.seen) == stimuli.ATTEMPTS + 3
