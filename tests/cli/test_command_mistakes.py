"""Mistakes end with a diagnostic and exit code 2, never with a traceback."""

import io
import os
import re
from pathlib import Path

import pytest

from openwafer.training.collectives.joining import MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
from tests.cli.command import run_command, settings


class Terminal(io.StringIO):
    """Takes text as a terminal does."""

    def isatty(self) -> bool:
        """Always."""
        return True


def test_a_mistake_in_a_config_is_shown_where_it_stands(config_file: Path) -> None:
    path = config_file.with_name("wrong.yaml")
    path.write_text(config_file.read_text().replace("steps:", "stpes:", 1))
    done = run_command("train", path)
    assert done.code == 2
    assert done.err.startswith(f"error[config-unknown-key]: no key 'stpes' here\n --> {path}:1:1\n")
    assert "= help: did you mean 'steps'?" in done.err


def test_a_mistake_on_the_command_line_is_shown_where_it_stands(config_file: Path) -> None:
    done = run_command("plan", config_file, *settings(["clip_norm=-1"]))
    assert (done.code, done.out) == (2, "")
    assert "1 | clip_norm=-1\n  |           ^^\n" in done.err


class InterruptedFile(io.StringIO):
    """Ctrl-C comes when something is to be written."""

    def write(self, text: str) -> int:
        """Write nothing."""
        raise KeyboardInterrupt


def test_a_command_that_is_interrupted_says_so(config_file: Path) -> None:
    done = run_command("plan", config_file, out=InterruptedFile())
    assert (done.code, done.err) == (130, "interrupted\n")


@pytest.mark.parametrize(
    "asked", [("--systems", "3"), ("--set", "systems=3"), ("--set", "systems= 0x3")]
)
def test_a_number_of_systems_that_the_launcher_does_not_have_is_refused(
    asked: tuple[str, str], config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = {RANK: "0", WORLD_SIZE: "2", MASTER_ADDR: "localhost", MASTER_PORT: "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    done = run_command("train", config_file, *asked)
    assert done.code == 2
    assert "asks for 3 systems, and the launcher has started 2 processes" in done.err


def test_a_plan_that_cannot_fit_is_refused_with_numbers(config_file: Path) -> None:
    done = run_command("train", config_file, "--plan-only", *settings(["device_memory=50kB"]))
    assert done.code == 2
    assert "bytes on the device, and the budget is 50,000 bytes" in done.err
    assert "help: raise the device budget" in done.err


@pytest.mark.parametrize(
    "command", [("resume",), ("evaluate",), ("generate",), ("export", "out"), ("report",)]
)
def test_a_folder_without_a_run_is_told(tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *rest = command
    done = run_command(name, tmp_path, *rest)
    assert done.code == 2
    assert f"{tmp_path}" in done.err
    assert "give the folder of a run" in done.err


def test_a_file_that_does_not_exist_is_told(tmp_path: Path) -> None:
    done = run_command("train", tmp_path / "none.yaml")
    assert done.code == 2
    assert done.err == (
        f"error[config-file]: cannot read {tmp_path / 'none.yaml'}: No such file or directory\n"
        "  = help: give the path of a YAML file\n"
    )


def test_a_size_without_sense_is_told(run: Path, tmp_path: Path) -> None:
    done = run_command("export", run, tmp_path / "out", "--shard-size", "2 gigs")
    assert (done.code, "--shard-size: '2 gigs' is not a byte size" in done.err) == (2, True)


def test_a_command_that_does_not_exist_is_told() -> None:
    done = run_command("trian")
    assert done.code == 2
    assert "No such command 'trian'" in done.err


def test_a_share_without_sense_is_told(run: Path) -> None:
    done = run_command("generate", run, "--top-p", 0)
    message = "error[option-value]: top_p: expected above 0 and at most 1, found 0.0\n"
    assert (done.code, done.err) == (2, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sparsity", "1.0"), "--sparsity: expected in [0, 1), found 1\n"),
        (("--sparsity", "-0.1"), "--sparsity: expected in [0, 1), found -0.1\n"),
        (("--structure", "9:4"), "--structure: '9:4' keeps 9 of every 4 weights\n"),
        ((), "--sparsity: expected a sparsity, found nothing\n"),
    ],
)
def test_a_share_of_zeros_without_sense_is_told(
    run: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = run_command("sparsify", run, tmp_path / "out", *options)
    assert done.err.startswith(f"error[option-value]: {message}")
    assert (done.code, "help: " in done.err, (tmp_path / "out").exists()) == (2, True, False)


def test_a_run_that_does_not_exist_is_told(tmp_path: Path) -> None:
    done = run_command("resume", tmp_path / "none")
    assert done.err.startswith(f"error[run-missing]: there is no run in {tmp_path / 'none'}")


def test_a_disk_that_is_full_is_told(run: Path) -> None:
    log = run / "log.txt"
    written = log.read_text()
    log.unlink()
    log.symlink_to("/dev/full")
    done = run_command("resume", run)
    log.unlink()
    log.write_text(written)
    assert done.err.startswith(f"error[system]: {log}: No space left on device\n")
    assert (done.code, "help: make room on that disk" in done.err) == (2, True)


@pytest.mark.parametrize("command", ["plan", "resume"])
def test_a_name_longer_than_the_system_takes_is_told(tmp_path: Path, command: str) -> None:
    done = run_command(command, tmp_path / ("n" * 300))
    assert done.code == 2
    assert re.search(r"error\[.*nnn.*: File name too long\n(.|\n)*help: .*shorter", done.err)


def test_a_prompt_that_is_no_text_is_told(run: Path) -> None:
    done = run_command("generate", run, "--prompt", os.fsdecode(b"caf\xe9"))
    assert done.code == 2
    assert done.err.startswith("error[option-value]: --prompt: character 3 is the byte 0xe9, which")


def test_a_plan_for_a_folder_that_is_a_file_is_refused(config_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_command("plan", config_file, *settings([f"folder={tmp_path}/file"]))
    assert (done.code, f"cannot make {tmp_path}/file/" in done.err) == (2, True)


def test_a_plan_to_evaluate_without_held_out_documents_is_refused(config_file: Path) -> None:
    values = ["evaluate={every: 1}", "data.validation_share=0"]
    done = run_command("train", config_file, "--plan-only", *settings(values))
    assert done.code == 2
    assert "data.validation_share is 0, and evaluate needs held-out documents" in done.err


@pytest.mark.parametrize(("no_color", "is_colored"), [("", True), ("1", False)])
def test_mistakes_are_colored_in_a_terminal_that_wants_color(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_color: str, is_colored: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    done = run_command("train", tmp_path / "none.yaml", err=Terminal())
    assert (done.code, "\x1b[" in done.err) == (2, is_colored)
