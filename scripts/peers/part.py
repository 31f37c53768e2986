"""One of several processes that train one program: `python -m peers.part SMALL --distributed=HOST:PORT,N,I`, then as `process.Workers`."""

import json
import sys

from jaxbed.system import processes


def main() -> None:
    (small,) = processes.join(sys.argv[1:])  # before anything touches a device
    from jaxbed import parallel
    from jaxbed.training import log
    from peers import cases

    parallel.keep_compilations()
    count = processes.count()
    _, run, _, _, losses = cases.training("", cases.on_devices(cases.scaling(small == "1"), count, grouped=True), "erm", data=count)
    for line in sys.stdin:
        run(int(line))
        print("bench", json.dumps({"loss": losses()[0], "peak_memory_bytes": log.peak_memory_bytes()}), flush=True)


if __name__ == "__main__":
    main()
