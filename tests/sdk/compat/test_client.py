"""The vendor's cluster client on the local simulator."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.client import SdkCompiler, SdkLauncher, SdkRuntime
from tests.sdk.compat.test_csl_commands import COMPILE, LAYOUT, PE


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/layout.csl").write_text(LAYOUT)
    (tmp_path / "src/pe.csl").write_text(PE)
    with SdkCompiler() as compiler:
        return compiler.compile("./src", "layout.csl", f"{COMPILE} -o latest", "made")


def test_a_program_becomes_an_archive_of_its_output_folder(archive: str) -> None:
    assert archive == "made/latest.tar.gz"


def test_an_archive_runs_while_its_block_lasts(archive: str) -> None:
    with SdkRuntime(archive, simulator=True) as runner:
        A = runner.get_id("A")
        runner.memcpy_h2d(A, np.ones(10, np.float32), 0, 0, 2, 1, 5)
        runner.launch("scale", 2.0)
        result = np.zeros(10, np.float32)
        runner.memcpy_d2h(result, A, 0, 0, 2, 1, 5)
    assert result.tolist() == [2.0] * 10


def test_a_system_is_refused(archive: str) -> None:
    with pytest.raises(OpenwaferError, match="programs run on the simulator"):
        SdkRuntime(archive, simulator=False)


def test_commands_run_beside_what_was_staged(archive: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("staged")
    with SdkLauncher(archive, simulator=True) as launcher:
        launcher.stage("note.txt")
        assert launcher.run("cat note.txt latest/out.json").startswith("staged{")


def test_a_command_that_fails_says_what_it_said(archive: str) -> None:
    with (
        SdkLauncher(archive) as launcher,
        pytest.raises(OpenwaferError, match=r"'exit 3' ended with 3"),
    ):
        launcher.run("exit 3")


def test_an_archive_that_reaches_beyond_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as file:
        file.add(tmp_path / "a.txt", "latest/../../b.txt")
    with pytest.raises(OpenwaferError, match=r"holds 'latest/\.\./\.\./b\.txt', which is no file"):
        SdkLauncher(f"{tmp_path}/made.tar.gz")


def test_an_archive_with_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as file:
        file.add(tmp_path / "link", "latest/link")
    with pytest.raises(OpenwaferError, match="holds 'latest/link', which is no file"):
        SdkLauncher(f"{tmp_path}/made.tar.gz")


def test_a_folder_in_the_place_of_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"is a folder(.|\n)*SdkCompiler\.compile returned"):
        SdkRuntime(str(tmp_path))


def test_an_archive_that_is_not_there_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"nothing\.tar\.gz is not there"):
        SdkLauncher("nothing.tar.gz")
