"""Object code is kept on disk, and what is kept is never trusted blindly."""

from pathlib import Path

import pytest

from openwafer.sdk.codegen.objects import Host, cache_folder, object_code, this_host

_TEXT = "define i32 @answer() {\n  ret i32 42\n}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENWAFER_CACHE", str(tmp_path))
    return tmp_path / "native"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.o"))


def test_code_is_compiled_once(folder: Path) -> None:
    first = object_code(_TEXT, this_host(), optimization=2)
    (file,) = _files(folder)
    stamp = file.stat().st_mtime_ns
    assert object_code(_TEXT, this_host(), optimization=2) == first
    assert file.stat().st_mtime_ns == stamp


def test_text_processor_and_level_tell_files_apart(folder: Path) -> None:
    host = this_host()
    object_code(_TEXT, host, optimization=2)
    object_code(_TEXT.replace("42", "43"), host, optimization=2)
    object_code(_TEXT, host, optimization=0)
    object_code(_TEXT, Host("generic", ""), optimization=2)
    assert len(_files(folder)) == 4


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 500])
def test_a_damaged_file_is_compiled_again(folder: Path, damage: bytes) -> None:
    code = object_code(_TEXT, this_host(), optimization=2)
    (file,) = _files(folder)
    file.write_bytes(damage)
    assert object_code(_TEXT, this_host(), optimization=2) == code
    assert file.read_bytes()[32:] == code


def test_the_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENWAFER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "openwafer" / "native"


def test_wrong_llvm_text_is_refused(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="expected"):
        object_code("define nonsense", this_host(), optimization=2)
    assert _files(folder) == []
