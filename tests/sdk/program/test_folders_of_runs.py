"""Folders of the environment that runs write to."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.program.environment import next_path


def test_files_have_the_next_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_CORE", str(tmp_path / "cores"))
    assert next_path("OPENWAFER_CORE", ".core") == tmp_path / "cores" / "0000.core"
    (tmp_path / "cores" / "0003.core").touch()
    assert next_path("OPENWAFER_CORE", ".core") == tmp_path / "cores" / "0004.core"


def test_a_file_in_the_place_of_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cores").touch()
    monkeypatch.setenv("OPENWAFER_CORE", str(tmp_path / "cores"))
    with pytest.raises(OpenwaferError, match=r"OPENWAFER_CORE is '.*cores', where no folder"):
        next_path("OPENWAFER_CORE", ".core")
