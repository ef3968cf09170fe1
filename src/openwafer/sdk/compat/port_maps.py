"""Port maps of the first releases: which PE has which element of a tensor.

``{ B[i=0:7][j=0:3] -> [PE[i // 4, 0] -> index[i % 4, j]] }``: for every element of the tensor, the
column and row of its PE, and its place there; several indices are those of an array.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError, error

Numbers = NDArray[np.int64]

_MAP: Final = re.compile(
    r"\s*\{\s*(?P<name>\w+)\s*(?P<domain>(?:\[[^\]]*\]\s*)+)->\s*\[\s*PE\s*\[(?P<pe>[^\]]*)\]"
    r"\s*->\s*index\s*\[(?P<index>[^\]]*)\]\s*\]\s*\}\s*"
)
_RANGE: Final = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<first>[^:]+):(?P<last>.+)")
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class PortMap:
    """A port map, worked out for every element.

    Attributes:
        shape: of the tensor.
        origin: column and row of the region's north-west PE.
        size: columns and rows of the region.
        num_elements: elements of one PE.
        places: of each element of the tensor in the region's words of shape (h, w, l).
    """

    shape: tuple[int, ...]
    origin: tuple[int, int]
    size: tuple[int, int]
    num_elements: int
    places: Numbers


def read_port_map(text: str) -> PortMap:
    """Read a port map. Raises OpenwaferError for text that is none, with what is wrong in it."""
    found = _MAP.fullmatch(text)
    if found is None:
        raise _refused(text, "it is not of the form { T[i=0:n] -> [PE[x, y] -> index[i]] }")
    ranges = [_range(text, part) for part in re.split(r"[\],]\s*\[?", found["domain"].strip(" []"))]
    shape = tuple(last - first + 1 for _, first, last in ranges)
    grids = np.meshgrid(*(np.arange(first, last + 1) for _, first, last in ranges), indexing="ij")
    names = {name: grid for (name, _, _), grid in zip(ranges, grids, strict=True)}
    column_row = _values(text, found["pe"], names, shape)
    if len(column_row) != 2:
        raise _refused(text, f"a PE has a column and a row, PE[{found['pe']}] has not")
    x, y = column_row
    index, num_elements = _flat(_values(text, found["index"], names, shape))
    origin = int(x.min()), int(y.min())
    size = int(x.max()) - origin[0] + 1, int(y.max()) - origin[1] + 1
    places = ((y - origin[1]) * size[0] + x - origin[0]) * num_elements + index
    return PortMap(shape, origin, size, num_elements, places)


def _refused(text: str, why: str) -> OpenwaferError:
    return error("port-map", f"'{text}' is no port map: {why}")


def _range(text: str, part: str) -> tuple[str, int, int]:
    found = _RANGE.fullmatch(part)
    if found is None:
        raise _refused(text, f"'{part}' is not of the form i=0:n")
    first, last = (int(_value(text, found[end], {})) for end in ("first", "last"))
    if last < first:
        raise _refused(text, f"the range {part.strip()} is empty")
    return found["name"], first, last


def _values(
    text: str, part: str, names: Mapping[str, Numbers], shape: tuple[int, ...]
) -> list[Numbers]:
    return [np.broadcast_to(_value(text, item, names), shape) for item in part.split(",")]


def _value(text: str, part: str, names: Mapping[str, Numbers]) -> Any:
    try:
        return _computed(ast.parse(part.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError) as cause:
        why = f"'{part.strip()}' is no sum, product, quotient or remainder of its indices"
        raise _refused(text, why) from cause


def _computed(node: ast.expr, names: Mapping[str, Numbers]) -> Any:
    match node:
        case ast.Constant(int() as number):
            return number
        case ast.Name(name) if name in names:
            return names[name]
        case ast.UnaryOp(ast.USub(), inner):
            return -_computed(inner, names)
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            divisor = _computed(right, names)
            if isinstance(op, ast.FloorDiv | ast.Mod) and np.any(np.equal(divisor, 0)):
                raise ValueError(ast.unparse(node))
            return _OPERATORS[type(op)](_computed(left, names), divisor)
        case _:
            raise ValueError(ast.unparse(node))


def _flat(indices: list[Numbers]) -> tuple[Numbers, int]:
    """Row-major place of several indices, and how many places there are."""
    flat, size = np.zeros_like(indices[0]), 1
    for index in indices:
        extent = int(index.max()) + 1
        flat, size = flat * extent + index, size * extent
    return flat, size
