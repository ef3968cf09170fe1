"""The files that start a run under launchers, judged by the launchers' own validators."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

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


def options_of(words: list[str]) -> dict[str, str]:
    """Long options of torchrun, up to the program that it starts."""
    text = " ".join(words[: words.index("--no-python")])
    return dict(re.findall(r"--([a-z-]+)[= ]([^ ]+)", text))


def test_slurm_and_kubernetes_start_one_system_a_node() -> None:
    script = (LAUNCH / "slurm.sh").read_text()
    words = shlex.split(script[script.index("exec torchrun") : script.index('"$@"\n')])
    _, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    [container] = job["spec"]["template"]["spec"]["containers"]
    slurm, kubernetes = options_of(words), options_of(container["command"])
    assert slurm.keys() == kubernetes.keys()
    assert kubernetes["nnodes"] == str(job["spec"]["completions"])
    assert slurm["nproc-per-node"] == kubernetes["nproc-per-node"] == "1"


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
