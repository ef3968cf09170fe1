"""The output folder: the program, and the JSON files that host scripts read."""

import json
from typing import Any

from openwafer.sdk.compiler.compilations import PROGRAM, Compilation
from openwafer.sdk.compiler.memory_map import memory_map
from openwafer.sdk.program import file
from openwafer.sdk.program.program import HostName, Program


def compilation_of(program: Program) -> Compilation:
    """The files of a program, and what its compiler said."""
    rpc = {"rpc_symbols": [_rpc_symbol(name) for name in program.host_names]}
    values = {"params": dict(program.params), "colors": dict(program.colors)}
    artifacts = {
        "bin/out_rpc.json": _text(rpc),
        "out.json": _text(values),
        "memory.txt": memory_map(program).encode(),
        PROGRAM: file.content(program),
    }
    return Compilation(artifacts, program.printed, program.warnings)


def _text(content: dict[str, Any]) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()


def _rpc_symbol(name: HostName) -> dict[str, Any]:
    symbol: dict[str, Any] = {
        "id": name.id,
        "immutable": int(not name.is_mutable),
        "kind": "Var" if name.inputs is None else "Func",
        "name": name.name,
        "type": name.type,
    }
    if name.inputs is not None:
        symbol["inputs"] = [{"name": label, "type": kind} for label, kind in name.inputs]
    return symbol
