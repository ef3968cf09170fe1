"""Programs survive their file, and a file that is none says so."""

import json
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program import file
from openwafer.sdk.program.image import Image, Symbol, TaskBinding, TaskKind
from openwafer.sdk.program.program import HostName, Program
from openwafer.sdk.program.routing import ColorConfig, PopMode, Switches, SwitchPosition

SWITCHED = ColorConfig(1, 16, Switches((SwitchPosition(rx=2),), 1, True, PopMode.ALWAYS_POP))
IMAGE = Image(
    name="pe.csl",
    code="module",
    data=b"\x01\x00\xff",
    stack_base=40,
    code_words=12,
    symbols=(Symbol("A", 16, 4, "f32", (2,)),),
    tasks=(TaskBinding(TaskKind.DATA, 3, 0),),
    colors=((3, SWITCHED),),
)
PROGRAM = Program(
    arch=Arch.WSE3,
    fabric=(9, 4),
    offset=(4, 1),
    images=(IMAGE,),
    image_of=np.zeros((2, 2), np.int32),
    parameters=np.arange(4, dtype=np.int64).reshape(2, 2, 1),
    routes=(((2, ColorConfig(1, 2)),),),
    routes_of=np.zeros((2, 2), np.int32),
    host_names=(HostName(1, "f", "void", inputs=(("x", "f32"),)), HostName(2, "A", "[*]f32")),
    params=(("M", "4"),),
)


def assert_same(left: Program, right: Program) -> None:
    for field in fields(Program):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        else:
            assert one == other, field.name


def test_a_program_read_back_equals_what_was_written(tmp_path: Path) -> None:
    file.write(PROGRAM, tmp_path / "p.zip")
    assert_same(file.read(tmp_path / "p.zip"), PROGRAM)


@given(data=st.binary(max_size=40), name=st.text(max_size=8), numbers=st.tuples(st.integers()))
def test_any_bytes_text_and_numbers_survive(
    data: bytes, name: str, numbers: tuple[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("program") / "p.zip"
    image = replace(IMAGE, data=data, name=name, exported_functions=((name, *numbers),))
    file.write(replace(PROGRAM, images=(image,)), path)
    assert file.read(path).images == (image,)


def test_equal_programs_make_equal_files(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        file.write(PROGRAM, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_missing_program_names_the_compiler(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"no compiled program at .*\n.*cslc"):
        file.read(tmp_path / "p.zip")


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.zip").write_bytes(b"PK but not really")
    with pytest.raises(OpenwaferError, match="is no program file"):
        file.read(tmp_path / "p.zip")


def rewrite(path: Path, **changes: object) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    record = json.loads(members["program.json"]) | changes
    members["program.json"] = json.dumps(record).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_another_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    file.write(PROGRAM, tmp_path / "p.zip")
    rewrite(tmp_path / "p.zip", version=99)
    with pytest.raises(OpenwaferError, match=r"version 99; this program reads .* version 6"):
        file.read(tmp_path / "p.zip")


def test_a_field_of_another_type_is_told_with_its_key_and_both_values(tmp_path: Path) -> None:
    file.write(PROGRAM, tmp_path / "p.zip")
    rewrite(tmp_path / "p.zip", channels="many")
    with pytest.raises(OpenwaferError, match=r"channels: .* int, found str 'many'\n.*again"):
        file.read(tmp_path / "p.zip")


def test_a_file_that_was_cut_anywhere_is_refused_in_words(tmp_path: Path) -> None:
    path, whole = tmp_path / "p.zip", file.content(PROGRAM)
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(OpenwaferError, match=r"is no program file: .*\n.*compile it again"):
            file.read(path)


def read_or_refusal(path: Path) -> Program | str:
    try:
        return file.read(path)
    except OpenwaferError as refused:
        return str(refused)


def test_a_file_with_a_changed_byte_is_refused_or_says_the_same(tmp_path: Path) -> None:
    path, whole = tmp_path / "p.zip", file.content(PROGRAM)
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        found = read_or_refusal(path)
        if isinstance(found, Program):
            assert_same(found, PROGRAM)
        else:
            assert "is no program file" in found
