"""Calls one CSL function on one PE, on arrays: for trying out a kernel, and for its tests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import did_you_mean, error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.compiler.pipeline import parse_file
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.text import render
from openwafer.sdk.door.compiled import QUIET, WITH_HOST, Param, compile_layout, text_of
from openwafer.sdk.door.elements import DTYPES
from openwafer.sdk.fabric import Print

_LAYOUT: Final = """\
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = 1, .height = 1 }});
layout {{
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{{ .memcpy_params = memcpy.get_params(0) }});
{names}
}}
"""
_CODE: Final = """\
param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const time = @import_module("<time>");
const called = @import_module("{file}", .{{ {params} }});
var stamps: [6]u16;
var begin: [3]u16;
var end: [3]u16;
var stamps_ptr: [*]u16 = &stamps;
{arrays}
fn start({parameters}) void {{
  time.enable_tsc();
  time.get_timestamp(&begin);
  {call};
  time.get_timestamp(&end);
  for (@range(u16, 3)) |i| {{
    stamps[i] = begin[i];
    stamps[i + 3] = end[i];
  }}
  sys.unblock_cmd_stream();
}}
comptime {{
  @export_symbol(stamps_ptr, "stamps");
  @export_symbol(start);
{exports}
}}
"""
_CSL_TYPES: Final = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Called:
    """What a call has left.

    Attributes:
        arrays: the arrays that were given, in their order, as the function left them.
        value: what the function returned; ``None`` for a function without a result.
        cycles: from before the call to behind it, the cost of looking at the clock included.
        prints: what the PE has printed.
    """

    arrays: tuple[NDArray[Any], ...]
    value: np.generic | None
    cycles: int
    prints: tuple[Print, ...]


def call(
    file: PathLike,
    function: str,
    *arguments: NDArray[Any] | float,
    arch: str = Arch.WSE3,
    params: Mapping[str, Param] | None = None,
) -> Called:
    """Call a function of a CSL file on one PE.

    An array goes to the PE, and the function gets a pointer to it: its parameter is a ``[*]f32``,
    or a ``*[n]f32`` of as many elements. A number is of the type of its parameter.

    Args:
        file: declares the function; its imports are looked up beside it.
        function: not a task; it has done its work when it returns.
        arguments: one for each parameter: arrays of one dim, or numbers.
        arch: ``"wse2"`` or ``"wse3"``.
        params: values of the file's params.

    Raises:
        OpenwaferError: the file is wrong, has no such function, or the arguments do not fit it.
    """
    file = path_of(file, "file")
    declared = _declared(file, function)
    if len(declared.parameters) != len(arguments):
        raise error(
            "launch-arguments",
            f"{function} takes {len(declared.parameters)} arguments, {len(arguments)} given",
            notes=(render(replace(declared, body=None)),),
        )
    program = _Wrapped(file, declared, arguments, params or {})
    with TemporaryDirectory(prefix="openwafer-") as folder:
        compiled = compile_layout(program.write(Path(folder)), arch=arch, options=WITH_HOST)
    with compiled.run(QUIET) as run:
        for name, array in program.arrays.items():
            run[name] = array
        run.launch("start", *program.numbers)
        arrays = tuple(run[name][0, 0].copy() for name in program.arrays)
        value = run["result"][0, 0, 0] if program.result_type else None
        before, behind = run["stamps"][0, 0].reshape(2, 3) @ (1 << np.array([0, 16, 32]))
        return Called(arrays, value, int(behind - before), run.prints)


class _Wrapped:
    """A program of one PE that calls a function."""

    def __init__(
        self,
        file: Path,
        function: ast.Function,
        arguments: Sequence[NDArray[Any] | float],
        params: Mapping[str, Param],
    ) -> None:
        self._file = file
        self._function = function
        self._params = params
        named = {f"a{number}": value for number, value in enumerate(arguments)}
        self.arrays = {
            name: _checked(name, value)
            for name, value in named.items()
            if isinstance(value, np.ndarray)
        }
        self.numbers = [value for value in named.values() if not isinstance(value, np.ndarray)]
        self._types = {
            name: render(parameter.type)
            for name, parameter in zip(named, function.parameters, strict=True)
            if name not in self.arrays
        }
        result = "void" if function.result is None else render(function.result)
        self.result_type = "" if result == "void" else result

    def write(self, folder: Path) -> Path:
        """Write the program's files; returns that of the layout."""
        layout = folder / "layout.csl"
        layout.write_text(_LAYOUT.format(names="\n".join(self._names())), encoding="utf-8")
        (folder / "pe.csl").write_text(self._code(), encoding="utf-8")
        return layout

    def _names(self) -> Iterator[str]:
        yield '  @export_name("stamps", [*]u16, false);'
        for name, element in self._elements().items():
            yield f'  @export_name("{name}", [*]{element}, true);'
        yield f'  @export_name("start", fn({", ".join(self._types.values())}) void);'

    def _elements(self) -> dict[str, str]:
        """Element types of what the host copies."""
        found = {name: _CSL_TYPES[array.dtype] for name, array in self.arrays.items()}
        return found | ({"result": self.result_type} if self.result_type else {})

    def _code(self) -> str:
        lengths = {name: len(array) for name, array in self.arrays.items()} | {"result": 1}
        elements = self._elements()
        declared = [
            f"var {name}: [{lengths[name]}]{kind};\nvar {name}_ptr: [*]{kind} = &{name};"
            for name, kind in elements.items()
        ]
        given = [f"&{name}" if name in self.arrays else name for name in self._arguments()]
        made = f"called.{self._function.name.text}({', '.join(given)})"
        return _CODE.format(
            file=self._file.resolve(),
            params=", ".join(f".{name} = {text_of(name, v)}" for name, v in self._params.items()),
            arrays="\n".join(declared),
            parameters=", ".join(f"{name}: {kind}" for name, kind in self._types.items()),
            call=f"result[0] = {made}" if self.result_type else made,
            exports="\n".join(f'  @export_symbol({name}_ptr, "{name}");' for name in elements),
        )

    def _arguments(self) -> list[str]:
        return [f"a{number}" for number in range(len(self._function.parameters))]


def _checked(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 1 or not array.size or array.dtype not in _CSL_TYPES:
        raise error(
            "host-tensor-shape",
            f"argument {name[1:]} is an array of shape {array.shape} and type {array.dtype}",
            help=f"give one dim of {', '.join(map(str, _CSL_TYPES))}: array.ravel()",
        )
    return array


def _declared(file: Path, name: str) -> ast.Function:
    functions = {
        node.name.text: node
        for node in parse_file(file).declarations
        if isinstance(node, ast.Function) and node.kind is ast.FunctionKind.FN
    }
    if name not in functions:
        raise error(
            "host-function-unknown",
            f"{file} has no function {name!r}",
            help=did_you_mean(name, functions),
        )
    return functions[name]
