"""Object code is kept on disk, and what is kept is never trusted blindly."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.codegen import cache
from openwafer.sdk.codegen.native import compile_images
from openwafer.sdk.codegen.objects import Effort, Host, Recipe, object_code, this_host
from openwafer.sdk.program.image import Entry, Image

_TEXT = "define i32 @answer() {\n  ret i32 42\n}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENWAFER_CACHE", str(tmp_path))
    return tmp_path / "native"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.o"))


def test_code_is_compiled_once(folder: Path) -> None:
    first = object_code(Recipe(_TEXT, this_host(), Effort.FULL))
    (file,) = _files(folder)
    stamp = file.stat().st_mtime_ns
    assert object_code(Recipe(_TEXT, this_host(), Effort.FULL)) == first
    assert file.stat().st_mtime_ns == stamp


def test_text_processor_and_level_tell_files_apart(folder: Path) -> None:
    host = this_host()
    object_code(Recipe(_TEXT, host, Effort.FULL))
    object_code(Recipe(_TEXT.replace("42", "43"), host, Effort.FULL))
    object_code(Recipe(_TEXT, host, Effort.NONE))
    object_code(Recipe(_TEXT, Host("generic", ""), Effort.FULL))
    assert len(_files(folder)) == 4


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 500])
def test_a_damaged_file_is_compiled_again(folder: Path, damage: bytes) -> None:
    code = object_code(Recipe(_TEXT, this_host(), Effort.FULL))
    (file,) = _files(folder)
    file.write_bytes(damage)
    assert object_code(Recipe(_TEXT, this_host(), Effort.FULL)) == code
    assert file.read_bytes()[32:] == code


def test_the_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENWAFER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "openwafer" / "native"


def test_wrong_llvm_text_is_refused(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="expected"):
        object_code(Recipe("define nonsense", this_host(), Effort.FULL))
    assert _files(folder) == []


_IMAGE = Image(
    name="image",
    code="""module "m" stack 100 memory 24576
entry &main
fn &main() void {
head:
  vector[mov16] dsd(1, 0, 9, 0, 1, 1, 0, 0), 7:u16 !0
  return !0
}
""",
    data=b"",
    stack_base=100,
    code_words=0,
    entries=(Entry("main"),),
)


def test_a_program_names_its_code_and_its_vector_operations(folder: Path) -> None:
    compile_images([_IMAGE, _IMAGE], Arch.WSE2)
    (listed,) = folder.rglob("*.list")
    first, *ways = listed.read_bytes()[32:].decode().split("\n")
    names = first.split()
    assert (len(names), len(ways)) == (3, 2)
    assert {f"{name}.o" for name in names} < {file.name for file in _files(folder)}


def test_a_missing_part_of_an_image_is_compiled_again(folder: Path) -> None:
    compile_images([_IMAGE], Arch.WSE2)
    files = _files(folder)
    for file in files:
        file.unlink()
    compile_images([_IMAGE], Arch.WSE2)
    assert _files(folder) == files


def test_a_cache_that_cannot_be_used_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("OPENWAFER_CACHE", str(tmp_path / "file"))
    for text in (_TEXT, _TEXT.replace("42", "43")):
        assert object_code(Recipe(text, this_host(), Effort.NONE))
    told = capfd.readouterr().err
    assert told.count("warning[cache-unusable]: compiled code cannot be kept in") == 1
    assert told.count("\n") == 2
