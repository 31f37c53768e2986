"""Runs of several processes, on the CPU: they do what one does, stop together and end together."""

import itertools
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from commands import JAXBED, ROOT, TRAIN, command, options

from jaxbed import main, parallel
from jaxbed.system import processes, starter, watch
from jaxbed.training.checkpoint import Store

CONFIG = """
    import dataclasses
    import itertools
    import os
    import time

    import tiny
    from jaxbed import config, parallel
    from jaxbed.data import shapes, stream
    from jaxbed.system import processes
    from jaxbed.training import train

    def feeds_with_pauses(*arguments, real=train.feeds_from):
        for feed in real(*arguments):
            time.sleep(float(os.environ["PAUSE_SECONDS"]))
            yield feed

    if "PAUSE_SECONDS" in os.environ:
        train.feeds_from = feeds_with_pauses

    @dataclasses.dataclass
    class Stuck(shapes.Config):
        # of which the last process never gets the second image

        def open(self):
            source, reads = super().open(), itertools.count()

            def read(row):
                if processes.index() == 1 and next(reads):
                    time.sleep(600)
                return source.train.image[row]

            images = stream.Images(read, source.train.name, source.train.image.shape[1:3])
            return dataclasses.replace(source, train=source.train._replace(image=images))

    @dataclasses.dataclass
    class Streamed(shapes.Config):
        def open(self):
            def on_disk(split):
                images = stream.Images(split.image.__getitem__, split.name, split.image.shape[1:3])
                return split._replace(image=images)

            source = super().open()
            sets = {name: one._replace(split=on_disk(one.split)) for name, one in source.sets.items()}
            return dataclasses.replace(source, train=on_disk(source.train), sets=sets)

    def get_config(kind="erm"):
        data = {"streamed": Streamed, "stuck": Stuck}.get(kind, shapes.Config)(train_images=64, val_images=16, test_images=16)
        evaluation = config.Eval(batch_size=16, sets=("val", "edge"))
        return tiny.mlp_config("jtt" if kind == "jtt" else "erm", seeds=4, mesh=parallel.Mesh(), eval=evaluation, data=data)
"""
EACH = ("--config.mesh.seed=6", "--config.mesh.data=1")  # a device for each seed
EPOCHS = 6
LONG = ("--config.seeds=6", f"--config.epochs={EPOCHS}", "--config.eval.while_training=False")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("configuration") / "four.py"
    path.write_text(textwrap.dedent(CONFIG))
    return path


def begin(
    config: pathlib.Path, folder: pathlib.Path, count: int, *words: str, of_last: tuple[str, ...] = (), **more: str
) -> list[subprocess.Popen]:
    """The processes of one run; more: variables of their environment."""
    port, begun = starter.free_port(), []
    for i in range(count):
        place = (f"--distributed=127.0.0.1:{port},{count},{i}", "--patience=15")
        arguments = (*TRAIN, f"--config={config}", f"--workdir={folder / 'run'}", *place, *words, *(of_last if i == count - 1 else ()))
        begun.append(subprocess.Popen(**options(folder, *arguments, **environment(), **more)))
    return begun


def environment() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}


def results(begun: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """(exit code, last line on stderr) of each process."""
    shown = [process.communicate()[1].strip() for process in begun]
    return [(process.returncode, text.splitlines()[-1] if text else "") for process, text in zip(begun, shown, strict=True)]


def wait_for(path: pathlib.Path, begun: list[subprocess.Popen]) -> None:
    while not path.is_file():
        assert all(process.poll() is None for process in begun), results(begun)
        time.sleep(0.02)


def answers(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """Of all epochs to all sets."""
    return {str(path.relative_to(workdir)): np.load(path)["response"] for path in sorted(workdir.rglob("responses/*/*.npz"))}


def weights(workdir: pathlib.Path) -> list[np.ndarray]:
    store = Store(workdir / "checkpoints" / "epochs", 4, print)
    newest = store.numbers()[-1]
    import jax

    return jax.tree.leaves(store.load(newest, store.abstract(newest)))


def assert_same(workdir: pathlib.Path, expected: pathlib.Path, **tolerance: float) -> None:
    """Parameters of the last epoch and all answers are equal: to the last bit, or within a tolerance."""
    for here, there in zip(weights(workdir), weights(expected), strict=True):
        np.testing.assert_allclose(here, there, **{"rtol": 0, "atol": 0, **tolerance})
    here, there = answers(workdir), answers(expected)
    assert here.keys() == there.keys() and here
    for name in here:
        np.testing.assert_array_equal(here[name], there[name])


@pytest.fixture
def alone(config, tmp_path, capsys):
    """The workdir of the same run in one process."""

    def run(source: str = "", *words: str) -> pathlib.Path:
        assert main.main([f"--config={config}{source}", f"--workdir={tmp_path / 'alone'}", *words]) == 0
        return tmp_path / "alone"

    return run


def test_a_run_goes_on_in_any_number_of_processes(config, tmp_path, alone):
    epochs, slowly = tmp_path / "run" / "checkpoints" / "epochs", {"PAUSE_SECONDS": "0.25"}  # before each step, so that none is too late
    two = begin(config, tmp_path, 2, *LONG, **slowly)
    wait_for(epochs / "1.json", two)
    two[1].send_signal(signal.SIGTERM)
    assert [code for code, _ in results(two)] == [128 + signal.SIGTERM] * 2
    done = Store(epochs, 4, print).numbers()
    three = begin(config, tmp_path, 3, *LONG, **slowly)
    wait_for(epochs / f"{done[-1] + 1}.json", three)
    three[1].kill()
    ends = results(three)
    assert ends.pop(1)[0] == -signal.SIGKILL
    assert all(code == 2 and "process 1 of 3 on" in line and "run the same command again to resume" in line for code, line in ends), ends
    assert done[-1] < len(Store(epochs, 4, print).numbers()) < EPOCHS
    assert main.main([f"--config={config}", f"--workdir={tmp_path / 'run'}", *LONG, *EACH]) == 0
    assert_same(tmp_path / "run", alone("", *LONG, *EACH, "--config.save.resume_every_minutes=60"))


def test_a_batch_is_shared_and_each_process_reads_its_part(config, tmp_path, alone):
    """Also of streamed images; sums over processes are those within one, to rounding."""
    words = ("--config.epochs=1", "--config.mesh.seed=1", "--config.mesh.data=2", "--config.eval.while_training=False")
    assert results(begin(config, tmp_path, 2, *words, f"--config={config}:streamed")) == [(0, "")] * 2
    assert_same(tmp_path / "run", alone("", *words), rtol=1e-4, atol=1e-5)


def test_stages_grids_and_evaluation_spread_too(config, tmp_path, alone):
    grid = '--config.grid=("optim.lr=0.01,0.001",)'
    words = (f"--config={config}:jtt", "--config.seeds=2", grid)
    launched = (*JAXBED, "launch", "--processes", 2, "--", sys.executable)
    done = command(tmp_path, *launched, *TRAIN, *words, f"--workdir={tmp_path / 'run'}", **environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch   2/2") == 1  # one process tells
    expected = alone(":jtt", "--config.seeds=2", grid, "--config.mesh.seed=2", "--config.mesh.data=1")
    assert_same(tmp_path / "run", expected)
    shutil.rmtree(tmp_path / "run" / "lr=0.01" / "responses")
    done = command(tmp_path, *launched, *JAXBED, "eval", tmp_path / "run", **environment())
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "run", expected)


@pytest.mark.slow  # waits until patience is over
def test_a_process_that_hangs_ends_all(config, tmp_path):
    """Its threads live, so that it gives signs of life."""
    ends = results(begin(config, tmp_path, 2, f"--config={config}:stuck", "--config.mesh.seed=1", "--config.mesh.data=2"))
    assert [code for code, _ in ends] == [2, 2]
    assert all("process 1 of 2 on" in line and "has hung for 15 s while others wait for it" in line for _, line in ends), ends


def test_what_one_process_refuses_ends_all(config, tmp_path):
    ends = results(begin(config, tmp_path, 2, of_last=("--config.optim.lr=0.5",)))
    assert ends[0] == ends[1]
    assert ends[0][0] == 2
    assert "process 1 of 2 on" in ends[0][1]
    assert "has other settings than process 0" in ends[0][1]
    assert not (tmp_path / "run").exists()


# What needs no other process


@pytest.mark.parametrize("word", ["", "here:7", "here:7,2", "here:7,2,2", "here:0,2,0", ":7,2,0", "here:7,two,0", "here:7,2,0,1", "7,2,0"])
def test_a_place_that_is_none_is_refused(word):
    with pytest.raises(ValueError, match=r"--distributed=.*: write HOST:PORT,N,I .* for example --distributed=node1:7777,4,0"):
        processes.join([f"--distributed={word}"])


@pytest.mark.parametrize("word", ["", "0", "-1", "soon", "nan"])
def test_patience_is_seconds(word):
    with pytest.raises(ValueError, match=f"--patience={word}: write seconds, more than 0"):
        processes.join(["--patience", word])


def test_one_process_joins_nobody():
    assert processes.join(["--config=erm", "--distributed=here:7,1,0"]) == ["--config=erm"]
    assert (processes.count(), processes.is_first(), processes.gather(3), processes.first(lambda: 4)) == (1, True, [3], 4)


def test_a_cluster_of_one_process_joins_nobody(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    processes.start()
    assert processes.count() == 1


def test_a_port_in_use_is_named():
    with starter.socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} of this machine is in use: take another"):
            processes.start(processes.Place(f"127.0.0.1:{port}", 2, 0))


class Signs:
    """Signs of life of some processes, a beat a second."""

    def __init__(self, count):
        self.judge, self.now, self.beats = watch.Judge(10.0), 0.0, {i: watch.Beat(0, 0, 0) for i in range(count)}

    def go_on(self, seconds, silent=(), stuck=(), alone=()):
        """What the judge says in the end."""
        lost = None
        for _ in range(seconds):
            self.now += 1
            for i, beat in self.beats.items():
                if i not in silent:
                    self.beats[i] = watch.Beat(beat.number + 1, beat.passed + (i not in stuck), int(i in alone))
            lost = lost or self.judge.lost(self.beats, self.now)
        return lost


def test_silent_and_hanging_processes_are_told_from_others():
    assert Signs(3).go_on(100) is None
    assert Signs(3).go_on(100, stuck=(0, 1, 2)) is None  # all compile
    assert Signs(3).go_on(9, silent=(1,)) is None
    assert Signs(3).go_on(12, silent=(1,)) == (1, "has given no sign of life for 10 s")
    assert Signs(3).go_on(12, stuck=(2,)) == (2, "has hung for 10 s while others wait for it")
    assert Signs(3).go_on(100, stuck=(2,), alone=(2,)) is None  # it compiles, or writes for all
    signs = Signs(2)
    for _ in range(10):
        assert signs.go_on(8, stuck=(1,)) is None  # slow, but not hanging
        assert signs.go_on(1) is None


def test_a_process_that_was_suspended_accuses_nobody():
    signs = Signs(2)
    signs.go_on(5)
    signs.now += 1000
    assert signs.go_on(5, silent=(0,)) is None
    assert signs.go_on(8, silent=(0,)) == (0, "has given no sign of life for 10 s")


class Keys:
    """The service's keys, in memory, for watches in threads."""

    def __init__(self):
        self.kept, self.changed, self.closed = {}, threading.Condition(), False

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            if self.closed or (key in self.kept and not allow_overwrite):
                raise ValueError("closed" if self.closed else "ALREADY_EXISTS")
            self.kept[key] = value
            self.changed.notify_all()

    def key_value_dir_get(self, folder):
        with self.changed:
            return [(key, value) for key, value in self.kept.items() if key.startswith(folder)]

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self.changed:
            if not self.changed.wait_for(lambda: self.closed or key in self.kept, timeout_in_ms / 1000):
                raise ValueError("DEADLINE_EXCEEDED")
            return self.kept[key]

    def close(self):
        """Ends the watches."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def test_who_is_done_waits_for_all_others_and_then_calls_the_service_no_more(monkeypatch):
    """A thread that is inside a call of the service while Python ends would abort a process that has done all its work."""
    monkeypatch.setattr(watch, "BEAT_SECONDS", 1e-3)
    keys = Keys()
    watches = [watch.Watch(i, ["a", "b", "c"], keys, 60.0) for i in range(3)]
    first = [threading.Thread(target=watches[i].finish) for i in range(2)]
    for thread in first:
        thread.start()
    time.sleep(0.1)
    assert all(thread.is_alive() for thread in first)  # the third is not done
    watches[2].finish()
    for thread in first:
        thread.join()
    beats = {key: value for key, value in keys.kept.items() if "beat" in key}
    time.sleep(0.1)
    assert beats == {key: value for key, value in keys.kept.items() if "beat" in key}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # how the watches end here
def test_many_wishes_come_true_in_the_same_places(monkeypatch):
    """Of three processes, each of which wishes something now and then."""
    ends = []
    monkeypatch.setattr(watch, "BEAT_SECONDS", 1e-4)
    monkeypatch.setattr(watch, "_end", lambda code, reason: ends.append(reason) or sys.exit(code))
    keys, fulfilled = Keys(), [[] for _ in range(3)]
    watches = [watch.Watch(i, ["a", "b", "c"], keys, 60.0) for i in range(3)]

    def go_on(i):
        for place in itertools.count():
            if agreed := watches[i].agreed(1 + i if place % (3 + i) == 0 else 0):
                fulfilled[i].append((place, agreed))
            if len(fulfilled[i]) == 40 or ends:
                return

    threads = [threading.Thread(target=go_on, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not ends
    assert len(fulfilled[0]) == 40 and fulfilled[0] == fulfilled[1] == fulfilled[2]
    keys.close()
    for thread in threading.enumerate():
        if thread.daemon and thread.name.startswith("watch"):
            thread.join()


@pytest.mark.parametrize(("seeds", "count", "devices"), [(6, 1, 6), (6, 2, 3), (6, 4, 1), (8, 2, 4), (5, 2, 1), (24, 2, 12), (7, 7, 1)])
def test_the_processes_of_a_cpu_share_the_seeds(seeds, count, devices):
    assert parallel.cpu_devices(seeds, count) == devices


def test_gpus_are_shared_equally():
    assert starter.shares(4, 2) == [[0, 1], [2, 3]]
    assert starter.shares(0, 2) == [[], []]
    with pytest.raises(ValueError, match="--processes 3: 4 GPUs cannot be shared equally; take a divisor of 4"):
        starter.shares(4, 3)


def test_launch_gives_each_process_its_place_and_tells_the_first_failure(tmp_path):
    script = tmp_path / "told.py"
    told = "sys.stdout.write(f'{sys.argv[1:]}\\n')"  # in one piece: the two share a pipe
    script.write_text(f"import sys; {told}; sys.exit(7 * sys.argv[-1].endswith('2,1'))")
    done = command(tmp_path, *JAXBED, "launch", "--processes", "2", "--", sys.executable, script, "word")
    assert done.returncode == 7
    first, second = sorted(done.stdout.splitlines(), key=lambda line: line[-4:])
    assert first.startswith("['word', '--distributed=127.0.0.1:") and first.endswith(",2,0']")
    assert second == first.replace(",2,0']", ",2,1']")


@pytest.mark.parametrize("words", [("--processes", "0", "--", "true"), ("--processes", "2", "--", "no-such-command")])
def test_launch_refuses(words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["jaxbed", "launch", *words])
    from jaxbed import cli

    assert cli.main() == 2
    assert words[1 if words[1] == "0" else 3] in capsys.readouterr().err
