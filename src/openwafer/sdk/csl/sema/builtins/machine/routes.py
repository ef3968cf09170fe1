"""Color configurations: routes, switches, filters, teardown."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.structs import Options, elements
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import NOTHING, Comptime, Loaded, Operand
from openwafer.sdk.program.routing import (
    ColorConfig,
    Direction,
    Filter,
    FilterKind,
    PopMode,
    Switches,
    SwitchPosition,
)
from openwafer.source import Span

_POP_MODES: Final = {mode.name.lower(): int(mode) for mode in PopMode}
_FILTER_KINDS: Final[Mapping[str, int]] = {kind.value: i for i, kind in enumerate(FilterKind)}
_RX_SHIFT: Final = 5
_ALL_SIDES: Final = (1 << _RX_SHIFT) - 1
_POSITIONS: Final = ("pos1", "pos2", "pos3")


@builtin("set_local_color_config")
def _set_local_color_config(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    color_node, node = call.arguments
    color = color_number(sema, color_node)
    colors = sema.unrecorded().machine.colors
    if color in colors:
        help = "configure it once, or give one of the modules that use it another color"
        sema.fail("color-twice", f"color {color} is configured already", call.span, help=help)
    colors[color] = color_config(sema, node, color)
    return NOTHING


def color_number(sema: Sema, node: ast.Expression) -> int:
    """A known color; numbers stand for colors in programs of the first releases."""
    operand = sema.comptime_value(node)
    if operand.type != t.COLOR and not t.is_int(operand.type):
        message = f"expected type 'color', got: '{operand.type}'"
        sema.fail("type-mismatch", message, node.span)
    return sema.integer(node)


def color_config(sema: Sema, node: ast.Expression, color: int) -> ColorConfig:
    """The configuration that a struct describes."""
    options = Options.read(sema, node, node.span)
    routes = _routes(sema, options, node.span, color)
    if sema.arch is Arch.WSE3 and routes.rx.bit_count() > 1:
        message = f"color {color} receives from {_names(routes.rx)}: wse3 takes one direction"
        sema.fail("several-inputs", message, node.span)
    config = ColorConfig(
        routes.rx,
        routes.tx,
        switches=_switches(sema, _nested(sema, options, "switches"), routes.pop_mode, color),
        filter=_filter(sema, _nested(sema, options, "filter")),
        swap_x=routes.swap_x,
        swap_y=routes.swap_y,
        is_torn_down=options.flag("teardown"),
    )
    options.close()
    return config


@dataclass(frozen=True)
class _Routes:
    rx: int
    tx: int
    pop_mode: int | None = None
    swap_x: bool = False
    swap_y: bool = False


def _routes(sema: Sema, options: Options, span: Span, color: int) -> _Routes:
    operand = options.operand("routes")
    if operand is None:
        help_text = "pass .routes = .{ .rx = ..., .tx = ... }"
        message = "a color configuration needs 'routes'"
        sema.fail("missing-field", message, span, help=help_text)
    bits = _bits(operand)
    if bits is not None:
        return _Routes(bits >> _RX_SHIFT & _ALL_SIDES, bits & _ALL_SIDES)
    if "switches" not in options and "teardown" not in options:
        _check_sides(sema, sema.fields(operand, options.span).keys(), options.span, color)
    routes = Options.of(sema, operand, options.span)
    found = _Routes(
        _directions(sema, routes, "rx") or 0,
        _directions(sema, routes, "tx") or 0,
        routes.choice("pop_mode", _POP_MODES),
        routes.flag("color_swap_x"),
        routes.flag("color_swap_y"),
    )
    routes.close()
    return found


def _check_sides(sema: Sema, given: Collection[str], span: Span, color: int) -> None:
    """Tell of a color that comes from nowhere, or leaves to nowhere, unless the program says so."""
    for name, other, way in (("rx", "tx", "comes from"), ("tx", "rx", "leaves to")):
        if name not in given and other in given:
            message = f"color {color} {way} nowhere: its routes have no '{name}'"
            help_text = f"add .{name}, or .{name} = .{{}} where that is meant"
            sema.warn("route-half", message, span, help_text)


def _bits(operand: Loaded) -> int | None:
    """Routes as newer programs may write them: the bits of a color's register."""
    if not isinstance(operand, Comptime) or not t.is_int(operand.type):
        return None
    assert isinstance(operand.value, int)
    return operand.value


def _nested(sema: Sema, options: Options, name: str) -> Options | None:
    operand = options.operand(name)
    return None if operand is None else Options.of(sema, operand, options.span)


def _directions(sema: Sema, options: Options, name: str) -> int | None:
    operand = options.operand(name)
    if operand is None:
        return None
    if operand.type == t.DIRECTION:
        return 1 << _direction(sema, operand, options.span)
    mask = 0
    for item in elements(sema, operand, options.span):
        bit = 1 << _direction(sema, item, options.span)
        if mask & bit:
            message = f"'{name}' names {_names(bit)} twice"
            sema.fail("direction-twice", message, options.span)
        mask |= bit
    return mask


def _direction(sema: Sema, operand: Loaded, span: Span) -> int:
    if operand.type != t.DIRECTION:
        sema.fail("type-mismatch", f"expected type 'direction', got: '{operand.type}'", span)
    number = sema.defined(operand, span).value
    assert isinstance(number, int)
    return number


def _names(mask: int) -> str:
    return " and ".join(side.name for side in Direction if mask >> side & 1)


def _switches(
    sema: Sema, options: Options | None, pop_mode: int | None, color: int
) -> Switches | None:
    if options is None:
        return None if pop_mode is None else Switches(pop_mode=PopMode(pop_mode))
    if color not in sema.options.generation.switch_colors:
        message = f"color {color} has no switches on {sema.arch}"
        allowed = ", ".join(map(str, sorted(sema.options.generation.switch_colors)))
        sema.fail("no-switches", message, options.span, help=f"colors with switches: {allowed}")
    positions: list[SwitchPosition] = []
    is_ended = False
    for name in _POSITIONS:
        position = _position(sema, options, name)
        is_ended = is_ended or position is None
        if position is not None and not is_ended:
            positions.append(position)
    given = options.choice("pop_mode", _POP_MODES)
    mode = PopMode(given if given is not None else pop_mode or 0)
    current = options.number("current_switch_pos")
    switches = Switches(tuple(positions), current, options.flag("ring_mode"), mode)
    options.close()
    return switches


def _position(sema: Sema, switches: Options, name: str) -> SwitchPosition | None:
    """A switch position; None for one that is never advanced to."""
    operand = switches.operand(name)
    bits = None if operand is None else _bits(operand)
    if operand is None or bits == 0:
        return None
    if bits is not None:
        return SwitchPosition(bits >> _RX_SHIFT or None, bits & _ALL_SIDES or None)
    options = Options.of(sema, operand, switches.span)
    if options.flag("invalid"):
        return None
    position = SwitchPosition(_directions(sema, options, "rx"), _directions(sema, options, "tx"))
    if sema.arch is Arch.WSE2 and position.rx is not None and position.tx is not None:
        message = "a switch position changes rx or tx on wse2, not both"
        sema.fail("switch-position", message, options.span)
    options.close()
    return position


def _filter(sema: Sema, options: Options | None) -> Filter | None:
    if options is None:
        return None
    kind = options.choice("kind", _FILTER_KINDS)
    found = Filter(
        kind=list(FilterKind)[kind or 0],
        count_data=options.flag("count_data"),
        count_control=options.flag("count_control"),
        init_counter=options.number("init_counter"),
        limit1=options.number("limit1"),
        limit2=options.number("limit2"),
        max_counter=options.number("max_counter"),
        filter_control=options.flag("filter_control"),
        min_index=options.number("min_idx"),
        max_index=options.number("max_idx"),
    )
    # Public programs set it; it changes no count, so the model has nothing to do for it.
    options.flag("fast_mode")
    options.close()
    _check_filter(sema, found, options.span)
    return found


def _check_filter(sema: Sema, found: Filter, span: Span) -> None:
    """Warn of a filter that decides nothing; an empty range ends just before it begins."""
    if found.kind is FilterKind.RANGE and found.max_index < found.min_index - 1:
        message = (
            f"the filter lets no data pass: .min_idx is {found.min_index}, above .max_idx, which is"
            f" {found.max_index}"
        )
        sema.warn("filter-passes-none", message, span, "give the lower number to .min_idx")
    if found.kind is FilterKind.COUNTER and found.max_counter > found.limit1:
        message = (
            f"the filter lets all pass: its counter goes to .limit1, which is {found.limit1}, and"
            f" .max_counter is {found.max_counter}"
        )
        help = "the first .max_counter + 1 of each .limit1 + 1 wavelets pass"
        sema.warn("filter-passes-all", message, span, help)


@builtin("get_filter_id")
def _get_filter_id(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    color = color_number(sema, node)
    with_filter = [c for c, config in sema.unrecorded().machine.colors.items() if config.filter]
    if color not in with_filter:
        sema.fail("no-filter", f"color {color} has no filter here", node.span)
    return Comptime(t.U16, sorted(with_filter).index(color))
