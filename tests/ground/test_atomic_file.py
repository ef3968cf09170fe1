"""A file is there whole, or as it was before."""

import os
import sys
from pathlib import Path
from types import FrameType

import pytest

from openwafer import atomic_file


def test_text_is_written_in_utf8(tmp_path: Path) -> None:
    atomic_file.write_text(tmp_path / "a.txt", "größer\n")
    assert (tmp_path / "a.txt").read_bytes() == "größer\n".encode()


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"a long old content")
    atomic_file.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_the_old_content_stands_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_file.replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"


def test_the_temporary_file_has_the_folder_and_the_suffix(tmp_path: Path) -> None:
    with atomic_file.replacing(tmp_path / "a.png") as temporary:
        temporary.touch()
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".png")


def test_the_folder_is_synced_once_it_has_the_new_name(tmp_path: Path) -> None:
    path, descriptors, open_with_name = tmp_path / "a.txt", Path("/proc/self/fd"), set[Path]()

    def note(_frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and called is os.fsync and path.exists():
            open_with_name.update(map(Path.resolve, descriptors.iterdir()))

    outer = sys.getprofile()
    sys.setprofile(note)
    try:
        atomic_file.write_text(path, "text")
    finally:
        sys.setprofile(outer)
    assert tmp_path.resolve() in open_with_name


def interrupt(path: Path) -> None:
    with atomic_file.replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt


def test_an_interrupted_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupt(path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"a.txt": "old"}


def test_a_missing_folder_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        atomic_file.write_text(tmp_path / "missing" / "a.txt", "text")


def test_the_file_gets_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("")
    atomic_file.write_text(tmp_path / "a.txt", "")
    modes = {file.stat().st_mode for file in tmp_path.iterdir()}
    assert len(modes) == 1
