"""Processes without the seconds that importing takes: a process that has imported everything forks one child for each command line.

A child is what `python -m MODULE ...` would be after its imports: in a session of its own, with its own output files and limits. No device
is touched before the fork. Requests and answers are JSON lines on stdin and stdout:

    {"module", "arguments", "folder", ...}  ->  {"process"} once MODULE is about to begin, then {"code", "spent_bytes"} at its end
    {"run": [word, ...]}                    ->  {"code"}: another program, in the mount namespace of this process
"""

import gc
import json
import logging
import os
import pathlib
import resource
import runpy
import signal
import subprocess
import sys
import traceback

IMPORTED = (
    *("clu.parameter_overview", "matplotlib.pyplot", "scipy.stats", "scikit_posthocs", "safetensors.numpy"),
    *("jaxbed.command_line", "jaxbed.training.train", "jaxbed.training.staged", "jaxbed.evaluation.evaluate", "jaxbed.tuning.sweep"),
    "jaxbed.stats.main",
    *("jaxbed.stats.figures.drawing", "jaxbed.stats.output.document", "jaxbed.stats.output.html", "jaxbed.data.records"),
    *("jaxbed.presets.datasets", "jaxbed.methods.erm", "jaxbed.methods.jtt", "jaxbed.models.mlp"),  # of the configurations
)


def serve() -> None:
    gc.disable()
    for module in IMPORTED:
        __import__(module)
    gc.freeze()  # children neither go through what was imported, nor copy it
    gc.enable()
    logging.root.handlers.clear()  # those of libraries that the command itself may not import
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        if "run" in asked:
            _tell(answers, code=subprocess.run(asked["run"], stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode)
            continue
        ready, begun = os.pipe()
        child = os.fork()
        if not child:
            os.close(ready)
            _child(asked, begun)
        os.close(begun)
        begins_with = int(os.read(ready, 32) or 0)  # nothing, where the child ended before
        os.close(ready)
        _tell(answers, process=child)
        status, used = os.wait4(child, 0)[1:]
        _tell(answers, code=os.waitstatus_to_exitcode(status), spent_bytes=max(1024 * used.ru_maxrss - begins_with, 0))


def _tell(answers, **content) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def _child(asked: dict, begun: int) -> None:
    """Runs the module and ends as the interpreter would."""
    os.setsid()
    for number, path in enumerate((os.devnull, asked["out"], asked["err"])):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.update(asked["environment"])
    size, resident = (int(pages) * resource.getpagesize() for pages in pathlib.Path("/proc/self/statm").read_text().split()[:2])
    if asked["spare_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (size + asked["spare_bytes"],) * 2)
    if cache := asked["environment"].get("JAX_COMPILATION_CACHE_DIR"):
        import jax

        jax.config.update("jax_compilation_cache_dir", cache)
    if asked["without_training"]:
        _replace_training()
    sys.argv = [asked["module"], *asked["arguments"]]
    sys.path.insert(0, "")
    code = 1
    try:
        os.write(begun, str(resident).encode())
        os.close(begun)
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    try:
        sys.stdout.flush()
    finally:
        os._exit(code & 255)


def _replace_training() -> None:
    """A command line that is accepted ends where work would begin."""
    from jaxbed.evaluation import evaluate
    from jaxbed.training import staged
    from jaxbed.tuning import launch

    def accept(*_arguments, **_names):
        print("accepted")
        sys.exit(0)

    staged.rehearse = lambda *_arguments: {}
    staged.run = evaluate.evaluate = launch.one_by_one = accept


if __name__ == "__main__":
    serve()
