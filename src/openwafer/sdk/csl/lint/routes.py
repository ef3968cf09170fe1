"""What is wrong with the routes of a whole layout, as far as it is known before the program runs.

For each color the hops of all PEs are compared at once. What looks wrong counts only where a
wavelet may come: upstream of it some PE's code sends the color. A color with switches takes all of
its positions at once, and a PE whose code writes configuration registers, or a color that is
swapped, is left alone; so what is said here is true of every run that sends.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.csl.lint.checked import known, warning
from openwafer.sdk.csl.lint.queues import RESERVED_COLORS, reserved
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.layout_state import LayoutState
from openwafer.sdk.csl.sema.machine_state import BoundTask, MachineState, queues_of
from openwafer.sdk.ir.function import Module
from openwafer.sdk.program.descriptor import (
    WORD_COLOR,
    WORD_KIND,
    WORD_QUEUE,
    DsdFlag,
    DsdKind,
)
from openwafer.sdk.program.image import Image, TaskKind
from openwafer.sdk.program.routing import OPPOSITE, STEPS, ColorConfig, Direction
from openwafer.source import Span

Mask = NDArray[np.bool_]
_SIDES: Final = (Direction.WEST, Direction.EAST, Direction.SOUTH, Direction.NORTH)
_ALL: Final = slice(None)
_BEHIND, _BEFORE = slice(1, None), slice(None, -1)
_NEIGHBOURS: Final = {
    Direction.WEST: ((_ALL, _BEHIND), (_ALL, _BEFORE)),
    Direction.EAST: ((_ALL, _BEFORE), (_ALL, _BEHIND)),
    Direction.SOUTH: ((_BEFORE, _ALL), (_BEHIND, _ALL)),
    Direction.NORTH: ((_BEHIND, _ALL), (_BEFORE, _ALL)),
}
"""PEs that have a next one on a side, and these."""
_EDGES: Final[Mapping[Direction, tuple[int | slice, int | slice]]] = {
    Direction.WEST: (_ALL, 0),
    Direction.EAST: (_ALL, -1),
    Direction.SOUTH: (-1, _ALL),
    Direction.NORTH: (0, _ALL),
}
_RAMP: Final = 1 << Direction.RAMP
_HALF_BITS: Final = 16
_WAYS_AND_BACK: Final = (
    1 << Direction.WEST | 1 << Direction.EAST,
    1 << Direction.SOUTH | 1 << Direction.NORTH,
)


@dataclass(frozen=True)
class Traffic:
    """Colors between the core of a PE and its router.

    Attributes:
        sent: that descriptors or queues of outputs name; None where run time chooses a color.
        read: the same of inputs, and of data tasks.
        is_configured: code writes configuration registers, and so may change routes and queues.
        wide: colors that operations send floats of 32 bits with, each with an operation.
        halved: data tasks whose arguments take no more than 16 bits, by the color that starts them.
    """

    sent: frozenset[int] | None
    read: frozenset[int] | None
    is_configured: bool
    wide: Mapping[int, str]
    halved: Mapping[int, BoundTask]


def traffic_of(module: Module, state: ImageState, arch: Arch) -> Traffic:
    """The traffic of an analysed image."""
    machine = state.machine
    queues = queues_of(machine, arch)
    color_of = {(one.is_input, one.queue): one.color for one in queues.bindings}
    read = {binding.color for binding in queues.bindings if binding.is_input}
    read |= {*queues.sharing, *machine.queueless_colors}
    read |= {color for colors in machine.used_queues.values() for color in colors}
    sent = {int(binding.color) for binding in queues.bindings if not binding.is_input}
    sent |= machine.sent_colors.keys()
    is_open = machine.has_open_color
    writes = any(
        one.op == "write_register"
        for every in module.functions.values()
        for one in every.instructions
    )
    return Traffic(
        None if is_open else frozenset(sent),
        None if is_open else frozenset(read),
        writes or bool(machine.registers),
        dict(_wide(module, color_of)),
        dict(_halved(machine, arch, color_of)),
    )


def _wide(module: Module, color_of: Mapping[tuple[bool, int], int]) -> Iterator[tuple[int, str]]:
    """Colors and operations that send floats of 32 bits, as far as they are known.

    An integer may be made of two halves, of which one is for a filter alone.
    """
    for every in module.functions.values():
        for one in every.instructions:
            if one.op != "vector" or VECTOR_OPS[one.names[0]].destination != "f32":
                continue
            for words in known(one.args[:1], DsdKind.FABOUT):
                if not words[WORD_KIND] & DsdFlag.CONTROL:
                    yield color_of.get((False, words[WORD_QUEUE]), words[WORD_COLOR]), one.names[0]


def _halved(
    machine: MachineState, arch: Arch, color_of: Mapping[tuple[bool, int], int]
) -> Iterator[tuple[int, BoundTask]]:
    for bound in machine.tasks:
        if bound.kind is TaskKind.DATA and 0 < bound.num_bits <= _HALF_BITS:
            color = bound.task_id if arch is Arch.WSE2 else color_of.get((True, bound.task_id))
            if color is not None:
                yield color, bound


@dataclass(frozen=True)
class Code:
    """The code of all PEs.

    Attributes:
        images: distinct ones.
        traffic: of each image.
        image_of: number of each PE's image, of the shape (rows, columns).
    """

    images: Sequence[Image]
    traffic: Sequence[Traffic]
    image_of: NDArray[np.int32]


@dataclass(frozen=True)
class _Color:
    """One color on all PEs; arrays have the shape (rows, columns).

    Attributes:
        number: of the color.
        rx, tx: masks of directions, of all switch positions.
        is_fixed: of each configuration, whether it has no switches.
        chosen: configuration of each PE; 0 is none.
        is_known: where code does not change the configuration.
        sends, is_sent, reads: of each image, whether its code may send the color, whether it names
            it in an output of its own, and whether it may read it.
        code: of all PEs.
    """

    number: int
    rx: NDArray[np.uint8]
    tx: NDArray[np.uint8]
    is_fixed: Mask
    chosen: NDArray[np.int32]
    is_known: Mask
    sends: Sequence[bool]
    is_sent: Sequence[bool]
    reads: Sequence[bool]
    code: Code

    def of_images(self, values: Sequence[bool]) -> Mask:
        """What each PE's image has."""
        of_pes: Mask = np.asarray(values, bool)[self.code.image_of]
        return of_pes


def route_warnings(state: LayoutState, code: Code, *, is_strict: bool) -> Iterator[Diagnostic]:
    """Warnings about colors, in their order; one for each color and kind of mistake.

    Official programs broadcast beyond the edge of the rectangle, and name colors as outputs that
    they never send, so only `is_strict` minds that.
    """
    local = {color for image in code.images for color, _ in image.colors}
    yield from _reserved_colors(state, local)
    yield from _routed_streams(state)
    swapped = set(_swapped(state, code.images))
    known = np.asarray([not one.is_configured for one in code.traffic], bool)[code.image_of]
    sent = set().union(*(one.sent or () for one in code.traffic))
    for number in sorted(state.configs_of.keys() | local | sent):
        if number in swapped:
            continue
        color = _color(state, code, number, known)
        finder = _Finder(state, color)
        if is_strict:
            yield from finder.off_the_edge()
            yield from finder.unrouted()
        yield from finder.broken_hops()
        yield from finder.unread()
        yield from finder.halved()
        yield from finder.circles()


def _reserved_colors(state: LayoutState, local: AbstractSet[int]) -> Iterator[Diagnostic]:
    """Colors of memcpy that the program configures, or gives a stream."""
    if state.has_memcpy:
        used = state.configs_of.keys() | local | set(state.streams.values())
        for color in sorted(RESERVED_COLORS & used):
            numbers = state.configs_of.get(color, np.zeros(0, np.int32))
            places = [state.configs[number - 1][1] for number in numbers[numbers > 0][:1]]
            yield reserved(f"color {color}", next(iter(places), None))


def _routed_streams(state: LayoutState) -> Iterator[Diagnostic]:
    """Streams of memcpy whose color the layout routes."""
    for name, color in state.streams.items():
        numbers = state.configs_of.get(color, np.zeros(0, np.int32))
        for number in numbers[numbers > 0][:1]:
            yield warning(
                "stream-routed",
                f"color {color} is the stream {name}, whose routes are memcpy's own",
                state.configs[number - 1][1],
                "remove this configuration, or give the stream another color",
            )


def _swapped(state: LayoutState, images: Iterable[Image]) -> Iterator[int]:
    """Colors that take part in swaps."""
    swapping = [n for n, (config, _) in enumerate(state.configs, 1) if _is_swap(config)]
    for color, numbers in state.configs_of.items():
        if any((numbers == number).any() for number in swapping):
            yield from (color, color ^ 1)
    for image in images:
        for color, config in image.colors:
            if _is_swap(config):
                yield from (color, color ^ 1)


def _is_swap(config: ColorConfig) -> bool:
    return config.swap_x or config.swap_y


def _color(state: LayoutState, code: Code, number: int, known: Mask) -> _Color:
    configs = [config for config, _ in state.configs]
    shape = code.image_of.shape
    chosen = state.configs_of.get(number, np.zeros(code.image_of.size, np.int32)).reshape(shape)
    for image_number, image in enumerate(code.images):
        for color, config in image.colors:
            if color == number:
                configs.append(config)
                chosen = np.where(code.image_of == image_number, np.int32(len(configs)), chosen)
    rx, tx, is_fixed = zip((0, 0, True), *map(_masks, configs), strict=True)
    is_stream = number in state.streams.values()
    return _Color(
        number,
        np.array(rx, np.uint8)[chosen],
        np.array(tx, np.uint8)[chosen],
        np.array(is_fixed, bool),
        chosen,
        known,
        [one.sent is None or number in one.sent for one in code.traffic],
        [not is_stream and number in (one.sent or ()) for one in code.traffic],
        [is_stream or one.read is None or number in one.read for one in code.traffic],
        code,
    )


def _masks(config: ColorConfig) -> tuple[int, int, bool]:
    """What a configuration accepts and sends in any position, and whether it has one position."""
    rx, tx = config.rx, config.tx
    positions = config.switches.positions if config.switches else ()
    for position in positions:
        rx |= position.rx or 0
        tx |= position.tx or 0
    return rx, tx, not positions


class _Finder:
    """Looks for the mistakes of one color."""

    def __init__(self, state: LayoutState, color: _Color) -> None:
        self._state = state
        self._color = color

    def unrouted(self) -> Iterator[Diagnostic]:
        """A color that code names as an output, and that no router takes from its core."""
        color = self._color
        if color.is_known.all() and any(color.is_sent) and not (color.rx & _RAMP).any():
            pe = _first(color.of_images(color.is_sent))
            yield self._warning(
                pe,
                "route-missing",
                f"the code of PE {_spelled(pe)} sends color {color.number}, and no router takes it "
                "from RAMP",
                f"configure color {color.number} there with RAMP in its .rx",
            )

    def off_the_edge(self) -> Iterator[Diagnostic]:
        """Wavelets that leave the rectangle."""
        for side in _SIDES:
            edge = np.zeros(self._color.tx.shape, bool)
            edge[_EDGES[side]] = True
            pe = self._fed(edge & (self._color.tx & (1 << side) != 0) & self._color.is_known)
            if pe is not None:
                yield self._warning(
                    pe,
                    "route-off-the-edge",
                    f"color {self._color.number} leaves PE {_spelled(pe)} to the {side.name}, "
                    "where the rectangle ends",
                    f"take {side.name} out of its .tx there",
                )

    def broken_hops(self) -> Iterator[Diagnostic]:
        """Wavelets that leave for a PE that does not accept them from there."""
        color = self._color
        for side in _SIDES:
            here, there = _NEIGHBOURS[side]
            leaves = color.tx[here] & np.uint8(1 << side) != 0
            refused = leaves & (color.rx[there] & np.uint8(1 << OPPOSITE[side]) == 0)
            if refused.any():
                wrong = np.zeros(color.tx.shape, bool)
                wrong[here] = refused & color.is_known[here] & color.is_known[there]
                pe = self._fed(wrong)
                if pe is not None:
                    yield self._not_accepted(pe, side)

    def unread(self) -> Iterator[Diagnostic]:
        """Wavelets that reach a core whose code does not read them."""
        color = self._color
        if all(color.reads):
            return
        is_read = color.of_images(color.reads)
        pe = self._fed((color.tx & np.uint8(_RAMP) != 0) & ~is_read & color.is_known)
        if pe is not None:
            yield self._warning(
                pe,
                "route-without-reader",
                f"color {color.number} reaches the core of PE {_spelled(pe)}, whose code never "
                "reads it",
                "read it with a data task or a fabin_dsd, or take RAMP out of its .tx",
            )

    def halved(self) -> Iterator[Diagnostic]:
        """Floats of 32 bits that start a data task of 16."""
        color, traffic = self._color, self._color.code.traffic
        sending = [one for one, sends in zip(traffic, color.sends, strict=True) if sends]
        names = [one.wide.get(color.number) for one in sending]
        tasks = [one.halved.get(color.number) for one in traffic]
        # Where some of the code may send other elements, whose wavelets come is not known.
        if None in names or not any(tasks):
            return
        takes = color.of_images([task is not None for task in tasks])
        pe = self._fed(takes & (color.tx & np.uint8(_RAMP) != 0) & color.is_known)
        task = None if pe is None else tasks[color.code.image_of[pe]]
        if pe is not None and task is not None:
            yield warning(
                "wavelet-halved",
                f"data task '{task.function}' of PE {_spelled(pe)} takes {task.num_bits} bits of a "
                f"wavelet of color {color.number}, and @{names[0]} sends floats of 32",
                task.span,
                "take an argument of type f32, or send floats of 16 bits",
            )

    def circles(self) -> Iterator[Diagnostic]:
        """Wavelets that come back to where they were, for ever."""
        color = self._color
        sides = int(np.bitwise_or.reduce(color.tx, axis=None))
        if all(sides & pair != pair for pair in _WAYS_AND_BACK):
            return
        pe = self._fed(_on_circles({side: self._hops(side) for side in _SIDES}))
        if pe is not None:
            yield self._warning(
                pe,
                "route-circle",
                f"wavelets of color {color.number} circulate for ever through PE {_spelled(pe)}",
                "take a direction out of the .tx of one of the PEs on the way round",
            )

    def _hops(self, side: Direction) -> Mask:
        """Where wavelets go on to the next PE on a side, whatever the position of switches."""
        color = self._color
        is_fixed = color.is_fixed[color.chosen] & color.is_known
        here, there = _NEIGHBOURS[side]
        hops = np.zeros(color.tx.shape, bool)
        hops[here] = (color.tx[here] & (1 << side) != 0) & is_fixed[here] & is_fixed[there]
        hops[here] &= color.rx[there] & (1 << OPPOSITE[side]) != 0
        return hops

    def _fed(self, wrong: Mask) -> tuple[int, int] | None:
        """The first of some PEs, as row and column, that wavelets come to, or that sends them."""
        if not wrong.any():
            return None
        color = self._color
        starts = [(int(y), int(x)) for y, x in np.argwhere(wrong)]
        origin = {pe: pe for pe in starts}
        waiting = deque(starts)
        while waiting:
            pe = waiting.popleft()
            if color.rx[pe] & _RAMP and color.sends[color.code.image_of[pe]]:
                return origin[pe]
            for other in self._before(pe):
                if other not in origin:
                    origin[other] = origin[pe]
                    waiting.append(other)
        return None

    def _before(self, pe: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """The PEs that send to one, which accepts it from them."""
        color = self._color
        rows, columns = color.rx.shape
        for side in _SIDES:
            across, down = STEPS[side]
            other = pe[0] + down, pe[1] + across
            is_there = 0 <= other[0] < rows and 0 <= other[1] < columns
            if (
                is_there
                and color.rx[pe] & (1 << side)
                and color.tx[other] & (1 << OPPOSITE[side])
                and color.is_known[other]
            ):
                yield other

    def _not_accepted(self, pe: tuple[int, int], side: Direction) -> Diagnostic:
        across, down = STEPS[side]
        other = pe[0] + down, pe[1] + across
        accepted = [one.name for one in Direction if self._color.rx[other] & (1 << one)]
        what = f"accepts it from {' and '.join(accepted)}" if accepted else "has no route for it"
        return self._warning(
            pe,
            "route-broken",
            f"color {self._color.number} leaves PE {_spelled(pe)} to the {side.name}, and PE "
            f"{_spelled(other)} {what}",
            f"add {OPPOSITE[side].name} to its .rx there, or take {side.name} out of the .tx of "
            f"PE {_spelled(pe)}",
        )

    def _warning(self, pe: tuple[int, int], code: str, message: str, remedy: str) -> Diagnostic:
        return warning(code, message, self._place(pe), remedy)

    def _place(self, pe: tuple[int, int]) -> Span | None:
        number = int(self._color.chosen[pe])
        is_of_layout = 0 < number <= len(self._state.configs)
        return self._state.configs[number - 1][1] if is_of_layout else None


def _first(where: Mask) -> tuple[int, int]:
    """Row and column of the first PE."""
    row, column = np.argwhere(where)[0]
    return int(row), int(column)


def _on_circles(hops: dict[Direction, Mask]) -> Mask:
    """PEs on circles of hops, or on the way from one circle to another."""
    rows, columns = hops[Direction.WEST].shape
    # With a border of PEs that have no hops, steps in the flat arrays stay on the fabric.
    width = columns + 2
    steps = {side: STEPS[side][1] * width + STEPS[side][0] for side in _SIDES}
    flat = {steps[side]: np.pad(there, 1).ravel() for side, there in hops.items()}
    back = {-step: np.roll(there, step) for step, there in flat.items()}
    inside = np.pad(np.ones((rows, columns), bool), 1).ravel()
    left = _without_ends(_without_ends(inside, flat), back)
    return left.reshape(rows + 2, width)[1:-1, 1:-1]


def _without_ends(left: Mask, hops: dict[int, Mask]) -> Mask:
    """Places that hops lead on from for ever; `hops` says for each step where there is one."""
    left = left.copy()
    num_hops = np.zeros(left.size, np.int8)
    for step, there in hops.items():
        num_hops += there & left & np.roll(left, -step)
    ends = np.flatnonzero(left & (num_hops == 0))
    while ends.size:
        left[ends] = False
        before = [(ends - step)[hops[step][ends - step] & left[ends - step]] for step in hops]
        for places in before:
            num_hops[places] -= 1
        touched = np.concatenate(before)
        ends = np.unique(touched[num_hops[touched] == 0])
    return left


def _spelled(pe: tuple[int, int]) -> str:
    return f"({pe[1]}, {pe[0]})"
