"""The plain meaning of a vector operation on memory and scalars."""

from collections.abc import Mapping, Sequence

from openwafer.sdk.arch.generation import Generation
from openwafer.sdk.arch.pace import (
    ONE_TURN,
    VectorShape,
    beat_words,
    drain_cycles,
    read_turns,
    vector_time,
)
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, VectorOp, element_words
from openwafer.sdk.ir.elements import element
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.machine import Machine
from openwafer.sdk.ir.numbers import decode
from openwafer.sdk.ir.operations import ROLES
from openwafer.sdk.program import descriptor as words
from openwafer.sdk.program import mailbox

_BY_WORDS = {1: Type.U16, 2: Type.U32}


def run_inline(
    machine: Machine,
    name: str,
    operands: Sequence[tuple[Type, int | tuple[int, ...]]],
    generation: Generation,
) -> None:
    """Run an operation element by element, in order, and count its cycles.

    The length is the first source's that has one and is not empty, else the destination's; without
    any descriptor it is 1. With a pointer as destination, a scalar in the first source's place is
    where the sum starts.

    Args:
        machine: the PE.
        name: of the operation.
        operands: type and bits of destination and sources.
        generation: whose time is counted.
    """
    op = VECTOR_OPS[name]
    (_, target), *sources = operands
    sizes = [element_words(kind) for kind in (op.destination, *op.sources)]
    values: list[int] = [0] * 3
    in_order = [*(bits for _, bits in sources), target]
    extents = [words.extent_of(bits) for bits in in_order if isinstance(bits, tuple)]
    length = next((extent for extent in extents if extent), 0 if extents else 1)
    accumulates = not isinstance(target, tuple) and not isinstance(sources[0][1], tuple)
    result = 0
    _show(machine, op, [bits for _, bits in operands], length)
    for index in range(length):
        for place, (_, bits) in enumerate(sources):
            values[place] = (
                _read(machine, bits, index, sizes[1 + place]) if isinstance(bits, tuple) else bits
            )
        if accumulates and index and len(sources) > 1:
            values[0] = result
        result = element(op.code, *values)
        if isinstance(target, tuple):
            machine.store(2 * _address(target, index, sizes[0]), _BY_WORDS[sizes[0]], result)
    if not isinstance(target, tuple) and length:
        machine.store(target & ~1, _BY_WORDS[sizes[0]], result)
    machine.box[mailbox.ELEMENTS] += length
    shape = _shape(op, [bits for _, bits in operands], generation)
    timing = generation.timing
    took = vector_time(op, length, generation, shape)
    machine.box[mailbox.CYCLE] += took.total
    machine.box[mailbox.BEATS] += took.beats
    machine.box[mailbox.PAUSES] += took.pauses
    machine.box[mailbox.TURNS] += took.turns
    drain = drain_cycles(timing.drain_cycles, timing.load_latency, shape.reads_memory)
    machine.box[mailbox.DRAINED] = machine.box[mailbox.CYCLE] + drain


def _show(
    machine: Machine, op: VectorOp, operands: Sequence[int | tuple[int, ...]], length: int
) -> None:
    """Show the simulator what the operands in memory touch, unless one of them leaves it."""
    sizes = [element_words(kind) for kind in (op.destination, *op.sources)]
    ends = {
        place: (bits[words.WORD_BASE], bits[words.WORD_BASE] + (length - 1) * _step(bits, size))
        for place, (bits, size) in enumerate(zip(operands, sizes, strict=True))
        if length and isinstance(bits, tuple)
    }
    if all(0 <= end <= len(machine.memory) - sizes[place] for place in ends for end in ends[place]):
        for place, (first, last) in ends.items():
            machine.show(mailbox.operand_of(op.code, place), first, last)


def show_streams(
    machine: Machine, roles: Sequence[str], dsds: Sequence[int | tuple[int, ...]]
) -> None:
    """Show the simulator what a loop over descriptors is to touch."""
    taken = [(ROLES[role], dsd) for role, dsd in zip(roles, dsds, strict=True)]
    length = min(dsd[words.WORD_EXTENT] for _, dsd in taken if isinstance(dsd, tuple))
    for role, dsd in taken:
        if length and role >= 0 and isinstance(dsd, tuple):
            begin, size = dsd[words.WORD_BASE], 1 + (role >> 1)
            machine.show(role, begin, begin + (length - 1) * _step(dsd, size))


def _shape(
    op: VectorOp, operands: Sequence[int | tuple[int, ...]], generation: Generation
) -> VectorShape:
    dsds = {place: bits for place, bits in enumerate(operands) if isinstance(bits, tuple)}
    return VectorShape(
        strides=tuple(_stride(op, place, bits) for place, bits in dsds.items()),
        turns=_turns(op, dsds, generation),
        accumulates=0 not in dsds and 1 not in dsds and len(op.sources) > 1,
        num_registers=len(dsds),
        reads_memory=any(dsds),
    )


def _turns(op: VectorOp, dsds: Mapping[int, tuple[int, ...]], generation: Generation) -> int:
    """Of the first two sources in memory; the results may take the place of the first one."""
    kinds = (op.destination, *op.sources)
    ways = [
        (bits[words.WORD_BASE], _step(bits, element_words(kinds[place])))
        for place, bits in dsds.items()
        if place
    ]
    if len(ways) < 2:
        return ONE_TURN
    is_updated = 0 in dsds and dsds[0][words.WORD_BASE] == ways[0][0]
    updated = beat_words(op, generation) if is_updated else 0
    return read_turns(*ways[0], *ways[1], generation.timing.row_words, updated)


def _stride(op: VectorOp, place: int, dsd: tuple[int, ...]) -> int:
    """Distance of an operand's elements, in elements of the operation."""
    size = element_words((op.destination, *op.sources)[place])
    step = _step(dsd, size)
    return abs(step) // size * (1 if step >= 0 else -1)


def _read(machine: Machine, dsd: tuple[int, ...], index: int, num_words: int) -> int:
    bits = machine.load(2 * _address(dsd, index, num_words), _BY_WORDS[num_words])
    assert isinstance(bits, int)
    return bits


def _address(dsd: tuple[int, ...], index: int, num_words: int) -> int:
    return (dsd[words.WORD_BASE] + index * _step(dsd, num_words)) & 0xFFFF


def _step(dsd: tuple[int, ...], num_words: int) -> int:
    """Words to the next element.

    Strides count elements of the operation's width, whatever the descriptor's own are.
    """
    stride = int(decode(dsd[words.WORD_STRIDE], Type.I16)) * num_words
    own = dsd[words.WORD_ELEMENT] or num_words
    return abs(stride) // own * (1 if stride >= 0 else -1)
