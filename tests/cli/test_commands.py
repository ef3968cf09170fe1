"""The commands, from a config to an exported model."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

import openwafer
from openwafer.cli.environment import DEFAULTS
from tests.cli.command import Done, run_command, settings
from tests.tables import case
from tests.training.session.test_failing_training import InterruptingFile


def test_the_version_is_that_of_the_package() -> None:
    assert run_command("--version").out == f"openwafer {openwafer.__version__}\n"


@pytest.mark.parametrize("words", [(), ("plan",), ("csl", "compile")])
def test_help_is_a_word_as_well_as_an_option(words: tuple[str, ...]) -> None:
    asked = run_command("help", *words)
    assert (asked.code, asked.out) == (0, run_command(*words, "--help").out)
    assert "sage: " in asked.out


@pytest.mark.parametrize(
    "option", [case(option, by_default=option == "") for option in ("--help", "-h", "")]
)
def test_cs_python_says_how_it_is_used(option: str) -> None:
    words = [sys.executable, "-m", "openwafer.cli.cs_python", *filter(None, [option])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "usage: cs_python [--check[=wrap]] [--profile[=FILE]] SCRIPT [ARGUMENT ...]",
    )


WAIT_BESIDE = """
import atexit, sys, threading, time
from openwafer.cli import main
atexit.register(print, "the interpreter has ended")
if sys.argv.pop() == "waits":
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
main()
"""


@pytest.mark.parametrize(
    ("command", "code", "thread", "is_ended"),
    [
        ("--version", 0, "waits", False),
        case("--version", 0, "none", True, by_default=False),
        case("--no-such-option", 2, "waits", False, by_default=False),
        ("--no-such-option", 2, "none", True),
    ],
)
def test_a_command_ends_at_once_where_threads_still_wait(
    command: str, code: int, thread: str, *, is_ended: bool
) -> None:
    words = [sys.executable, "-c", WAIT_BESIDE, command, thread]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("the interpreter has ended" in done.stdout) == is_ended


PRINT_ENVIRONMENT = """
import os, sys
from openwafer.cli import main
from openwafer.cli.environment import DEFAULTS
sys.argv = ["openwafer", *sys.argv[1:]]
try:
    main()
except SystemExit:
    print("", os.getpid(), [os.environ.get(name) for name in DEFAULTS], sep="\\n")
"""


def environment_of(command: str, given: dict[str, str]) -> list[str]:
    """Process and variables of a command, after what it has shown."""
    unset = {name: value for name, value in os.environ.items() if name not in DEFAULTS}
    words = [sys.executable, "-c", PRINT_ENVIRONMENT, command, "--help"]
    with subprocess.Popen(
        words, env={**unset, **given}, stdout=subprocess.PIPE, text=True
    ) as program:
        out, _ = program.communicate()
    number, variables = out.splitlines()[-2:]
    return [str(int(number) - program.pid), variables]


@pytest.mark.parametrize(
    "given",
    [
        case({}, by_default=False, id="nothing"),
        case({"OMP_WAIT_POLICY": "ACTIVE"}, by_default=True, id="one variable"),
        case(dict.fromkeys(DEFAULTS, ""), by_default=False, id="all variables"),
    ],
)
def test_training_begins_anew_with_what_the_user_has_not_set(given: dict[str, str]) -> None:
    assert environment_of("train", given) == ["0", str(list({**DEFAULTS, **given}.values()))]


def test_commands_of_the_wafer_begin_at_once() -> None:
    assert environment_of("csl", {}) == ["0", str([None] * len(DEFAULTS))]


def test_help_lists_every_command() -> None:
    out = run_command("--help").out
    commands = ["train", "plan", "resume", "export", "report", "evaluate", "generate", "demo"]
    commands += ["sparsify", "fit", "claims"]
    assert [name for name in commands if f" {name} " not in out] == []


def test_help_names_both_wings_and_groups_commands_by_them() -> None:
    shown = run_command("--help").out
    train, program = shown.index("─ Train "), shown.index("─ Program the wafer ")
    assert "Train models larger than the device, and program a wafer" in shown
    assert train < shown.index("│ resume ") < program < shown.index("│ conform ")


def test_training_shows_the_plan_the_steps_and_what_comes_next(trained: Done, run: Path) -> None:
    assert (trained.code, trained.err) == (0, "")
    assert re.search(r"^layers +parameters +weights +states +gradients", trained.out, re.MULTILINE)
    assert re.search(r"^step 2/2  loss \d\.\d{4}  ", trained.out, re.MULTILINE)
    assert f"openwafer generate {run} --prompt TEXT" in trained.out


def test_a_trained_run_is_not_trained_again(config_file: Path, run: Path) -> None:
    done = run_command("train", config_file)
    assert done.code == 2
    assert f"openwafer resume {run}" in done.err


def test_resuming_a_complete_run_says_that_it_is_done(run: Path) -> None:
    done = run_command("resume", run)
    assert (done.code, done.err) == (0, "")
    assert "done: 2 steps, all before, in" in done.out


def test_generation_prints_the_prompt_and_what_follows(run: Path) -> None:
    arguments = ("generate", run, "--prompt", "3 squared", "--tokens", 4, "--temperature", 0)
    done = run_command(*arguments)
    assert done.out.startswith("3 squared")
    assert run_command(*arguments).out == done.out


def test_evaluation_prints_the_loss(run: Path) -> None:
    done = run_command("evaluate", run, "--batches", 1)
    assert re.fullmatch(r"validation loss \d\.\d{4}\n", done.out)


def test_the_export_can_be_loaded(run: Path, tmp_path: Path) -> None:
    done = run_command("export", run, tmp_path / "out", "--dtype", "bf16", "--shard-size", "9kB")
    assert done.out == f"wrote {tmp_path / 'out'}\n"
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert str(model.dtype) == "torch.bfloat16"


LOOKING = ("--method", "wanda", "--samples", "4")


def test_a_pruned_model_says_how_it_is_trained_on(
    config_file: Path, run: Path, tmp_path: Path
) -> None:
    done = run_command("sparsify", run, tmp_path / "out", "--sparsity", "0.9", *LOOKING)
    assert done.code == 0, done.err
    assert re.search(
        r"^1/2  model.layers.0  .*\n2/2  model.layers.1  .*host ", done.out, re.MULTILINE
    )
    assert re.search(r"^14 weights of 4,352 elements: 90.2% are zero, ", done.out, re.MULTILINE)
    [model, sparsity] = re.findall(r"(?:model|sparsity): \{.*?\}", done.out)
    written = settings(
        [f"name={tmp_path.name}", *(f"{key.replace(': ', '=', 1)}" for key in (model, sparsity))]
    )
    assert run_command("train", config_file, *written).code == 0


@pytest.mark.slow
def test_the_report_is_one_file_in_the_run(run: Path) -> None:
    assert run_command("report", run).out == f"wrote {run / 'report.html'}\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_an_interrupted_run_says_how_to_go_on(config_file: Path) -> None:
    done = run_command("train", config_file, "--set", "name=stopped", out=InterruptingFile(1))
    run = config_file.parent / "runs/stopped"
    assert done.code == 130
    assert done.err == (
        f"SIGINT: ended after step 1, which is saved\ngo on with: openwafer resume {run}\n"
    )


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_plan_is_shown_without_a_run(config_file: Path, command: str) -> None:
    flags = ["--plan-only"] if command == "train" else []
    done = run_command(command, config_file, "--set", "name=planned", *flags)
    assert done.code == 0
    assert re.search(r"^layers\.0 … layers\.1 \(2\) +\d.*MiB disk|KiB disk", done.out, re.MULTILINE)
    assert re.search(r"^device peak +\d+ KiB of ", done.out, re.MULTILINE)
    assert not (config_file.parent / "runs/planned").exists()
