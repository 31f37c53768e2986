"""The scripts that start runs on clusters, with programs in place of the cluster's own."""

import os
import shlex
import subprocess

import pytest
from commands import ROOT

SLURM, TPU = ROOT / "scripts" / "slurm.sbatch", ROOT / "scripts" / "tpu_pod.sh"


def program(folder, name: str, code: int = 0) -> None:
    """A program that tells how it was called."""
    path = folder / name
    path.write_text(f'#!/bin/sh\necho {name} "$@"\nexit {code}\n')
    path.chmod(0o755)


@pytest.mark.parametrize("code", [0, 2, 143])
def test_a_job_that_was_stopped_in_time_goes_back_to_the_queue(tmp_path, code):
    program(tmp_path, "srun", code)
    program(tmp_path, "scontrol")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "PYTHON": "/env/python"}
    done = subprocess.run(["bash", SLURM, "--config=erm", "--workdir=a b"], env=environment, capture_output=True, text=True)
    assert done.returncode == code
    assert "/env/python -m jaxbed.main --config=erm --workdir=a b" in done.stdout
    assert ("scontrol requeue 17" in done.stdout) == (code == 143)


def test_the_steps_of_a_tpu_run_are_printed():
    environment = {**os.environ, "NAME": "pod", "ZONE": "here", "TYPE": "v5p-16", "NFS": "host:/share", "SPOT": "1"}

    def words(*step: str) -> list[str]:
        """Of the last command."""
        done = subprocess.run(["bash", TPU, "--dry-run", *step], env=environment, capture_output=True, text=True, check=True)
        return shlex.split(done.stdout.splitlines()[-1])

    assert words("create")[4:] == ["create", "pod", "--accelerator-type=v5p-16", "--version=tpu-ubuntu2204-base", "--spot", "--zone=here"]
    started = words("start", "--config=sagnet:imagenet", '--config.grid=("optim.lr=0.1,0.01",)')
    assert started[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod"] and "--worker=all" in started
    on_host = next(word for word in started if word.startswith("--command=")).removeprefix("--command=")
    assert shlex.split(on_host)[-2:] == ["--config=sagnet:imagenet", '--config.grid=("optim.lr=0.1,0.01",)']
    assert "jaxbed[tpu]" in " ".join(words("install"))
    assert "host:/share /mnt/runs" in " ".join(words("mount"))
    assert words("fetch", "/mnt/runs/a", "here")[4:8] == ["scp", "--recurse", "pod:/mnt/runs/a", "here"]
    assert words("delete")[4:] == ["delete", "pod", "--quiet", "--zone=here"]


@pytest.mark.parametrize("step", [(), ("begin",), ("start",), ("fetch", "one")])
def test_an_unknown_step_shows_what_there_is(step):
    done = subprocess.run(["bash", TPU, "--dry-run", *step], capture_output=True, text=True)
    assert done.returncode == 2 and "tpu_pod.sh" in done.stderr + "tpu_pod.sh" * bool(step) and done.stderr
