"""The output folder holds what host scripts read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.compiler.artifacts import compilation_of
from openwafer.sdk.program import FILE_NAME, file
from openwafer.sdk.program.program import HostName, Program

PROGRAM = Program(
    arch=Arch.WSE2,
    fabric=(8, 3),
    offset=(4, 1),
    images=(),
    image_of=np.zeros((1, 1), np.int32),
    parameters=np.zeros((1, 1, 0), np.int64),
    routes=(),
    routes_of=np.zeros((1, 1), np.int32),
    host_names=(
        HostName(1, "A", "[*]f32", is_mutable=True),
        HostName(2, "f", "void", inputs=(("x", "f32"),)),
    ),
    params=(("M", "4"),),
    colors=(("c", "1"),),
)


def test_parameters_are_texts_in_out_json(tmp_path: Path) -> None:
    compilation_of(PROGRAM).write(tmp_path / "out")
    written = json.loads((tmp_path / "out/out.json").read_text())
    assert written == {"params": {"M": "4"}, "colors": {"c": "1"}}


def test_a_copy_of_out_json_goes_where_it_is_asked_for(tmp_path: Path) -> None:
    compilation_of(PROGRAM).write(tmp_path / "out", tmp_path / "copy.json")
    assert (tmp_path / "copy.json").read_text() == (tmp_path / "out/out.json").read_text()


def test_variables_and_functions_have_their_ids_in_out_rpc_json(tmp_path: Path) -> None:
    compilation_of(PROGRAM).write(tmp_path)
    symbols = json.loads((tmp_path / "bin/out_rpc.json").read_text())["rpc_symbols"]
    assert symbols == [
        {"id": 1, "immutable": 0, "kind": "Var", "name": "A", "type": "[*]f32"},
        {
            "id": 2,
            "immutable": 1,
            "kind": "Func",
            "name": "f",
            "type": "void",
            "inputs": [{"name": "x", "type": "f32"}],
        },
    ]


def test_a_folder_that_is_there_is_written_over(tmp_path: Path) -> None:
    compilation_of(PROGRAM).write(tmp_path)
    compilation_of(replace(PROGRAM, params=())).write(tmp_path)
    assert file.read(tmp_path / "bin" / FILE_NAME).params == ()
