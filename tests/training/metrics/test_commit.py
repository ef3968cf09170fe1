"""The environment of a run names the commit of the folder in which it was started."""

import os
import subprocess
from pathlib import Path

import pytest

from openwafer.training.metrics.run_record import describe_machine

IDENTITY = ("-c", "user.name=tester", "-c", "user.email=tester@example.com")


def git(folder: Path, *arguments: str) -> str:
    command = ("git", "-C", str(folder), *IDENTITY, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "run.yaml").write_text("steps: 1\n")
    git(tmp_path, "add", "run.yaml")
    git(tmp_path, "commit", "--quiet", "--message", "A config")
    return tmp_path


def test_the_commit_is_named_with_what_differs_from_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    head = git(repository, "rev-parse", "HEAD")
    before = describe_machine("cpu").facts["commit"]
    (repository / "run.yaml").write_text("steps: 2\n")
    after = describe_machine("cpu").facts["commit"]
    assert (before, after) == (head, f"{head}, with changes that are in no commit")


def test_a_changed_file_may_have_a_name_in_any_encoding(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    git(repository, "config", "core.quotePath", "false")
    Path(os.fsdecode(b"caf\xe9.yaml")).touch()
    git(repository, "add", "--all")
    assert describe_machine("cpu").facts["commit"].endswith(", with changes that are in no commit")


def test_a_folder_without_git_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "commit" not in describe_machine("cpu").facts
