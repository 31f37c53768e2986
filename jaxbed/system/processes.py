"""The processes of one run: who they are, what they agree on, and how all end when one does.

Every process runs the same program on its own devices; the first one alone writes. What this module's functions give is the same in all.
Without `start` there is one process, and each of them is trivial.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from jaxbed.system import coordinator, ending, watch

T = TypeVar("T")
PATIENCE_SECONDS = 45.0  # how long a process may be silent before the others give it up
MEETING_SECONDS = 300  # for all to be started
PIECE_MS = 1000
CLUSTERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")  # number of processes, where a cluster started them


class Place(NamedTuple):
    """What --distributed=HOST:PORT,N,I says."""

    coordinator: str  # HOST:PORT
    processes: int
    process: int


def parse(word: str) -> Place:
    """The place of a process among others. Raises ValueError for anything but HOST:PORT,N,I."""
    address, *numbers = word.split(",")
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and 0 < int(port) < 2**16 and len(numbers) == 2 and all(number.isdecimal() for number in numbers):
        place = Place(address, *map(int, numbers))
        if place.process < place.processes:
            return place
    meaning = "where the first process can be reached, how many there are, and which of them this is, counted from 0"
    raise ValueError(f"--distributed={word}: write HOST:PORT,N,I ({meaning}), for example --distributed=node1:7777,4,0")


def join(words: list[str]) -> list[str]:
    """Takes --distributed and --patience out of a command line and joins the other processes, if there are any; returns the other words."""
    rest, given = [], dict[str, str]()
    following = iter(words)
    for word in following:
        name, equals, value = word.partition("=")
        if name not in ("--distributed", "--patience"):
            rest.append(word)
            continue
        given[name] = value if equals else next(following, "")
    place = parse(given["--distributed"]) if "--distributed" in given else None
    patience = given.get("--patience", str(PATIENCE_SECONDS))
    if not re.fullmatch(r"\d+(\.\d+)?", patience) or not float(patience):
        raise ValueError(f"--patience={patience}: write seconds, more than 0, after which a silent process is given up")
    if not {"--help", "-h"} & set(rest):
        start(place, float(patience))
    return rest


class Group:
    """This process and the others."""

    def __init__(self, index: int, count: int, client: Any, patience: float):
        from jax import monitoring

        self.index, self.count, self.patience = index, count, patience
        self._client, self._calls = client, dict[str, int]()
        self.names = [f"process {i} of {count} on {host}" for i, host in enumerate(self.gather(socket.gethostname(), "hosts"))]
        self.watch = watch.Watch(index, self.names, client, patience)
        monitoring.register_event_listener(self._on_event)
        monitoring.register_event_duration_secs_listener(self._on_duration)

    def first(self, function: Callable[[], T], name: str) -> T:
        key = self._key("first", name)
        if self.index == 0:
            with self.watch.alone():
                self._client.key_value_set(key, json.dumps(function()))
        return json.loads(self._get(key))

    def gather(self, value: T, name: str) -> list[T]:
        key = self._key("gather", name)
        self._client.key_value_set(f"{key}/{self.index}", json.dumps(value))
        return [json.loads(self._get(f"{key}/{i}")) for i in range(self.count)]

    def _on_event(self, event: str, **_: Any) -> None:
        if event.endswith("compile_requests_use_cache"):
            self.watch.compiles(True)

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            self.watch.compiles(False)

    def _get(self, key: str) -> str:
        """Waits for a value in pieces, between which Python can handle a signal. Where a process ends, the watch ends this one too."""
        while True:
            try:
                return self._client.blocking_key_value_get(key, PIECE_MS)
            except Exception as error:  # of several kinds
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise

    def _key(self, kind: str, name: str) -> str:
        """Of one call: the processes make calls of one name in the same order."""
        self._calls[name] = self._calls.get(name, 0) + 1
        return f"{kind}/{name}/{self._calls[name]}"


_group: Group | None = None


def start(place: Place | None = None, patience: float = PATIENCE_SECONDS) -> None:
    """Joins the other processes of a run, where there are any: at `place`, or as the cluster says that started them.

    To be called before anything touches a device. Raises ValueError where they do not meet.
    """
    global _group
    clustered = any(os.environ.get(name, "1") != "1" for name in CLUSTERS)
    if place is None and not clustered and not _is_tpu_pod():
        return
    import jax
    from jax._src import clusters, distributed  # what a cluster tells, and what keeps the keys: they have no public names

    ids = None
    if place is None:
        address, number, process, ids = clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, MEETING_SECONDS
        )
        if address is None or number is None or process is None:
            raise ValueError("the environment says that this is one of several processes, and not which: give --distributed=HOST:PORT,N,I")
        place = Place(address, number, process)
    if place.processes == 1:
        return
    if place.process == 0:
        _serve(place, patience)
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    try:
        jax.distributed.initialize(
            *place,
            local_device_ids=ids,
            coordinator_bind_address="127.0.0.1:0" if place.process == 0 else None,  # of a second service, which nobody calls
            cluster_detection_method="deactivate",
            initialization_timeout=MEETING_SECONDS,
            heartbeat_timeout_seconds=coordinator.heartbeat_seconds(patience),
        )
    except Exception as error:  # of several kinds
        reason = str(error).splitlines()[0]
        raise ValueError(f"{place.processes} processes did not meet at {place.coordinator} in {MEETING_SECONDS} s: {reason}") from error
    _group = Group(place.process, place.processes, distributed.global_state.client, patience)


def _is_tpu_pod() -> bool:
    """Whether this is one of several machines with TPUs: their names are in the environment, or known to the machine's metadata."""
    from jax._src.cloud_tpu_init import running_in_cloud_tpu_vm

    hosts = os.environ.get("TPU_WORKER_HOSTNAMES")
    return "," in hosts if hosts is not None else running_in_cloud_tpu_vm


def _serve(place: Place, patience: float) -> None:
    """Starts the service at which all meet. It ends soon after this process."""
    port = place.coordinator.rpartition(":")[2]
    with socket.socket() as probe:  # the service itself would share the port with another run's
        try:
            probe.bind(("", int(port)))
        except OSError as error:
            raise ValueError(f"--distributed={place.coordinator}: port {port} of this machine is in use: take another") from error
    command = [sys.executable, "-P", coordinator.__file__, f"[::]:{port}", str(place.processes), str(patience)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    service = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True, start_new_session=True)
    assert service.stdin and service.stdout
    if service.stdout.readline().strip() != coordinator.READY:
        raise ValueError(f"--distributed={place.coordinator}: the service cannot be started at port {port} of this machine")


def count() -> int:
    return _group.count if _group else 1


def index() -> int:
    return _group.index if _group else 0


def is_first() -> bool:
    return index() == 0


def names() -> list[str]:
    """What the processes are called in messages; [] where there is one."""
    return _group.names if _group else []


def first(function: Callable[[], T], name: str = "run") -> T:
    """What the function gives in the first process, where alone it is called: JSON. Calls of one name come in the same order in all."""
    passes()
    return _group.first(function, name) if _group else function()


def gather(value: T, name: str = "run") -> list[T]:
    """The values of all processes, in their order: JSON."""
    passes()
    return _group.gather(value, name) if _group else [value]


def passes() -> None:
    """A place where all processes come by, such as a computation that they share: one that stays behind too long hangs."""
    if _group:
        _group.watch.passes()


def check_same(value: Any, what: str) -> None:
    """Raises ValueError where a process has another value, JSON, than the first one."""
    if _group:
        others = gather(value, f"same {what}")
        if odd := [name for name, other in zip(names(), others, strict=True) if other != others[0]]:
            raise ValueError(f"{odd[0]} has other {what} than {names()[0]}: give all the same")


def agreed(wish: int) -> int:
    """What all processes do here: 0, or a number that one of them wished: of a signal to stop for, for example.

    A wish comes true a little later, in all at once: they must ask equally often, in the same places.
    """
    return _group.watch.agreed(wish) if _group else wish


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Within, what ends this process early ends the others too, with the same code and message."""
    if _group is None:
        yield
        return
    name, watching = _group.names[_group.index], _group.watch
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        code = stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else ending.STOPPED
        watching.end_all(code, f"{name} was stopped; run the same command again to resume")
    except Exception as error:
        if watch.may_be_of_another(str(error)):
            watching.await_end()
        if reason := ending.reason_of(error):
            watching.end_all(2, reason if reason.startswith(tuple(_group.names)) else f"{name}: {reason}")
        traceback.print_exc()
        watching.end_all(1, f"{name}: {type(error).__name__}: {error}")
    watching.finish()
