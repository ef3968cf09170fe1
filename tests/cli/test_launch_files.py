"""The files that start a run under launchers, judged by the launchers' own validators."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.command import EXAMPLES

LAUNCH = EXAMPLES / "launch"
ROOT = EXAMPLES.parent


def run(*command: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tool(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def options_of(script: str) -> dict[str, str]:
    """Long options of torchrun in a script, up to the program that it starts."""
    words = shlex.split(script[script.index("exec torchrun") : script.index("--no-python")])
    return dict(re.findall(r"--([a-z-]+)[= ]([^ ]+)", " ".join(words)))


def pods() -> tuple[Any, Any]:
    """The job of Kubernetes and its pod's only container."""
    *_, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    [container] = job["spec"]["template"]["spec"]["containers"]
    return job["spec"], container


def commands_of(script: Path, folder: Path, **variables: str) -> str:
    """What a script starts torchrun with, where Slurm's commands do nothing by themselves."""
    stands_in = {"scontrol": "echo node-1", "srun": 'shift 2; exec "$@"', "torchrun": 'echo "$@"'}
    for name, line in stands_in.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", script, "small.yaml", "runs/small"],
        cwd=folder,
        env={"PATH": path, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_slurm_and_kubernetes_start_one_system_a_node() -> None:
    job, container = pods()
    slurm = options_of((LAUNCH / "slurm.sh").read_text())
    kubernetes = options_of(container["command"][-1])
    assert slurm.keys() == kubernetes.keys()
    assert kubernetes["nnodes"] == str(job["completions"])
    assert slurm["nproc-per-node"] == kubernetes["nproc-per-node"] == "1"


SLURM = {"SLURM_JOB_NODELIST": "node-[1-4]", "SLURM_NNODES": "4", "SLURM_NODEID": "2"}


def test_slurm_s_jobs_have_ports_of_their_own_and_go_on_with_their_runs(tmp_path: Path) -> None:
    variables = {**SLURM, "SLURM_CPUS_PER_TASK": "16", "SLURM_JOB_ID": "1000007"}
    options = "--nnodes 4 --nproc-per-node 1 --node-rank 2 --master-addr node-1 --master-port"
    begun = commands_of(LAUNCH / "slurm.sh", tmp_path, **variables)
    assert begun == f"{options} 10007 --max-restarts 3 --no-python openwafer train small.yaml\n"
    (tmp_path / "runs" / "small").mkdir(parents=True)
    (tmp_path / "runs" / "small" / "config.yaml").touch()
    resumed = commands_of(LAUNCH / "slurm.sh", tmp_path, **{**variables, "SLURM_JOB_ID": "41"})
    assert resumed.startswith(f"{options} 10041 ")
    assert resumed.endswith(" openwafer resume runs/small --set systems=4\n")


def test_pods_go_on_with_their_run(tmp_path: Path) -> None:
    script = tmp_path / "pod.sh"
    script.write_text(pods()[1]["command"][-1])
    begun = commands_of(script, tmp_path, JOB_COMPLETION_INDEX="3")
    assert "--node-rank 3 " in begun
    assert begun.endswith(" openwafer train small.yaml\n")
    (tmp_path / "runs" / "small").mkdir(parents=True)
    (tmp_path / "runs" / "small" / "config.yaml").touch()
    resumed = commands_of(script, tmp_path, JOB_COMPLETION_INDEX="3")
    assert resumed.endswith(" openwafer resume runs/small --set systems=4\n")


def test_torchrun_lets_a_step_end_within_the_launchers_grace() -> None:
    job, container = pods()
    script = (LAUNCH / "slurm.sh").read_text()
    grace = job["template"]["spec"]["terminationGracePeriodSeconds"]
    own = {each["name"]: each.get("value") for each in container["env"]}
    assert int(own["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < grace
    [seconds] = re.findall(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", script)
    [before] = re.findall(r"--signal=TERM@(\d+)", script)
    assert int(seconds) < int(before)


@pytest.mark.slow
def test_slurm_s_script_is_a_clean_script() -> None:
    run(tool("shellcheck"), LAUNCH / "slurm.sh")


@pytest.mark.slow
def test_kubernetes_knows_every_key() -> None:
    run(tool("kubernetes-validate"), "--strict", LAUNCH / "kubernetes.yaml")


@pytest.mark.slow
def test_torchx_makes_a_job_of_it() -> None:
    command = ["run", "--dryrun", "--scheduler", "local_cwd", "dist.ddp", "-j", "2x1"]
    told = run(tool("torchx"), *command, "-m", "openwafer", "--", "train", "small.yaml")
    # A long command is printed in pieces.
    assert "-m openwafer train small.yaml" in re.sub(r"'\s+'", "", told)
