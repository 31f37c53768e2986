"""The service at which the processes of a run meet, in a process of its own: it outlives the first of them, so that the others can say how
that ended. Inside the first one, where `jax.distributed` runs it, its death would abort all others without a word.

Started as `python coordinator.py ADDRESS PROCESSES SECONDS`. It prints READY; once its input is closed, which happens however
the first process ends, it stays for SECONDS and some more.
"""

import signal
import sys
import time

READY = "ready"
MORE_SECONDS = 5.0


def heartbeat_seconds(patience: float) -> int:
    """When the service itself gives up a silent process: long after the others have."""
    return int(10 * patience) + 100


def main(address: str, processes: str, seconds: str) -> None:
    from jaxlib import _jax  # what `jax.distributed` calls: there is no public name for the service alone

    for number in (signal.SIGINT, signal.SIGTERM):  # they are meant for the run
        signal.signal(number, signal.SIG_IGN)
    patience = float(seconds)
    service = _jax.get_distributed_runtime_service(address, int(processes), heartbeat_timeout=heartbeat_seconds(patience))
    print(READY, flush=True)
    sys.stdin.read()
    time.sleep(patience + MORE_SECONDS)
    service.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
