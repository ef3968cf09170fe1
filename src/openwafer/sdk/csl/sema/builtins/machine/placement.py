"""Where a program's rectangle lies on the fabric."""

from typing import NoReturn

from openwafer.diagnostics import error
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.analysis import Poisoned
from openwafer.sdk.csl.sema.layout_state import Rectangle
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.source import Span

# Columns and rows that memcpy takes beside the rectangle, as the SDK documents them: command
# channels in the west, and in the east and around the fabric's edges.
_WEST = 4
_EAST = 3
_NORTH = 1
_SOUTH = 1


def place_rectangle(options: CompileOptions, size: tuple[int, int], span: Span) -> Rectangle:
    """The place that the options give a rectangle of that many columns and rows.

    Raises:
        OpenwaferError: it does not fit the fabric, or leaves no room for memcpy.
    """
    is_memcpy = options.is_memcpy
    least = (_WEST + options.width_west_buf, _NORTH) if is_memcpy else (0, 0)
    offset = options.fabric_offsets or least
    if is_memcpy and (offset[0] < least[0] or offset[1] < least[1]):
        raise error(
            "csl-fabric-offsets",
            f"The core must have --fabric-offsets=4+width_west_buf,1: {least[0]},{least[1]} or "
            f"more, got {offset[0]},{offset[1]}",
            span=span,
        )
    behind = (_EAST + options.width_east_buf, _SOUTH) if is_memcpy else (0, 0)
    needed = (offset[0] + size[0] + behind[0], offset[1] + size[1] + behind[1])
    fabric = options.fabric_dims or needed
    if fabric[0] < needed[0] or fabric[1] < needed[1]:
        raise error(
            "csl-fabric-dims",
            f"Fabric dimension must be at least {needed[0]}-by-{needed[1]}, "
            f"got {fabric[0]}-by-{fabric[1]}",
            span=span,
            help=f"pass --fabric-dims={needed[0]},{needed[1]}",
        )
    widest = options.generation.max_fabric
    if fabric[0] > widest[0] or fabric[1] > widest[1]:
        raise error(
            "csl-fabric-dims",
            f"a {options.arch} has {widest[0]} x {widest[1]} PEs, got {fabric[0]} x {fabric[1]}",
            span=span,
        )
    return Rectangle(size, fabric, offset)


def fail_without_rectangle(sema: Sema, call: ast.BuiltinCall) -> NoReturn:
    """Report that a builtin needs the rectangle, unless the rectangle's own error says it all."""
    if sema.layout is not None and sema.layout.is_refused:
        raise Poisoned(*sema.diagnostics[-1:])
    message = f"@{call.name.text} comes before @set_rectangle"
    help = "begin the layout block with @set_rectangle(width, height)"
    sema.fail("no-rectangle", message, call.span, help=help)
