"""The output folder: the program, and the JSON files that host scripts read."""

import json
from pathlib import Path
from typing import Any

from openwafer.atomic_file import write_text
from openwafer.sdk.program import file
from openwafer.sdk.program.program import HostName, Program


def write_artifacts(program: Program, folder: Path, output_json: Path | None = None) -> None:
    """Write ``out.json``, ``bin/out_rpc.json`` and the program file below `folder`.

    Raises OSError where the disk refuses.
    """
    binaries = folder / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    file.write(program, binaries / file.FILE_NAME)
    rpc = {"rpc_symbols": [_rpc_symbol(name) for name in program.host_names]}
    write_text(binaries / "out_rpc.json", json.dumps(rpc, indent=2) + "\n")
    values = {"params": dict(program.params), "colors": dict(program.colors)}
    text = json.dumps(values, indent=2) + "\n"
    write_text(folder / "out.json", text)
    if output_json is not None:
        write_text(output_json, text)


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
