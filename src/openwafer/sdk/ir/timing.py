"""Cycles of scalar code and of vector operations in memory.

The model: instructions execute one a cycle, in order; a load or store takes two, so that load,
load, operate, store of 16 bits take seven. Wider integers take an instruction for each 16 bits. A
float operation takes two cycles, as its result is mostly used at once. Figures of the machine come
from the generation; those that are estimates stand here, each with its reason
(docs/design/wafer-model.md).
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from openwafer.sdk.arch.generation import Generation
from openwafer.sdk.arch.vector_ops import VectorOp
from openwafer.sdk.ir.function import Block, Constant, Function, Instruction, Type
from openwafer.sdk.ir.numbers import FLOATS, num_words

_MEMORY: Final = 2
_FLOAT: Final = 2
# Integer division and the functions of the numbers are routines, not instructions: a step for each
# bit of the quotient, and a polynomial of about twenty dependent steps with its reduction.
_CYCLES_A_QUOTIENT_BIT: Final = 3
_MATH: Final = 100
# Jump, link and a register move on the way in, a jump on the way back.
_CALL: Final = 12
_FREE: Final = frozenset(
    ("get", "set", "slot_address", "bitcast", "jump", "branch", "return", "unreachable", "assert")
) | {
    # Stands for a constant: on the machine each PE has code of its own.
    "parameter"
}
_BY_WIDTH: Final = frozenset(
    ("add", "sub", "mul", "and", "or", "xor", "shl", "shr", "neg", "bitnot", "cast")
) | {"eq", "ne", "lt", "le", "gt", "ge"}
BANKS_THAT_CONFLICT: Final = 4
"""Words whose addresses are equal modulo this lie in banks that share a read port."""


def instruction_cycles(instruction: Instruction, generation: Generation) -> int:
    """Cycles of one instruction; those of edges and of vector operations come on top."""
    kind = instruction.args[0].type if instruction.args else instruction.type
    match instruction.op:
        case op if op in _FREE:
            return 0
        case "load" | "store" | "copy":
            return _memory_cycles(instruction)
        case "mul" if kind not in FLOATS:
            return num_words(kind) ** 2
        case "div" | "rem":
            return _division_cycles(kind, generation)
        case "math":
            return _MATH
        case "call" | "call_indirect":
            return _CALL + len(instruction.args)
        case "switch":
            return len(instruction.args) - 1
        case op if op in _BY_WIDTH:
            return _FLOAT if kind in FLOATS else num_words(kind)
        case _:
            return 1


def _accesses(words: int) -> int:
    """One for each 32 bits."""
    return (words + 1) // 2


def _memory_cycles(instruction: Instruction) -> int:
    """A copy of a length known at run time counts as that of one element."""
    if instruction.op == "load":
        return _MEMORY * _accesses(num_words(instruction.type))
    if instruction.op == "store":
        return _MEMORY * _accesses(num_words(instruction.args[1].type))
    length = instruction.args[2]
    words = length.value if isinstance(length, Constant) else 1
    return 2 * _MEMORY * _accesses(words if isinstance(words, int) else 1)


def _division_cycles(kind: Type, generation: Generation) -> int:
    if kind in FLOATS:
        return generation.divide_cycles
    return _CYCLES_A_QUOTIENT_BIT * 16 * num_words(kind)


def edge_cycles(function: Function, index: int, generation: Generation) -> tuple[int, ...]:
    """Cycles from the end of block `index` to each of its targets."""
    block = function.blocks[index]
    last = block.instructions[-1]
    not_taken, taken = generation.branch_cycles
    following = function.blocks[index + 1].label if index + 1 < len(function.blocks) else ""
    match last.op:
        case "jump" if block.is_loop_end:
            # A compiler tests at the loop's end; here the head's test is part of the same edge.
            return (generation.loop_cycles - not_taken,)
        case "jump":
            return (0 if last.names[0] == following else taken,)
        case "branch":
            first = generation.loop_cycles if block.is_loop_end else not_taken
            return (first, taken)
        case _:
            return (taken,) * len(last.names)


def block_cycles(block: Block, generation: Generation) -> int:
    """Cycles of a block's instructions without its edge and its vector operations."""
    return sum(instruction_cycles(one, generation) for one in block.instructions)


@dataclass(frozen=True)
class VectorShape:
    """What the time of a vector operation depends on besides its length.

    Attributes:
        stride: largest distance of a source's elements, in elements, without sign.
        has_conflict: two sources in memory share a read port (:func:`shares_port`).
        accumulates: each result is an operand of the next element.
    """

    stride: int = 1
    has_conflict: bool = False
    accumulates: bool = False


def cycles_an_element(
    op: VectorOp, generation: Generation, *, accumulates: bool = False
) -> Fraction:
    """Cycles of an element whose neighbours lie beside it; a sum waits for each result."""
    pace = 1 / Fraction(op.rates[generation.arch])
    waits = accumulates and op.destination in FLOATS
    return max(pace, Fraction(_FLOAT)) if waits else pace


def vector_cycles(
    op: VectorOp, num_elements: int, generation: Generation, shape: VectorShape = VectorShape()
) -> int:
    """Cycles of an operation on memory.

    A stride leaves elements of what is read at once unused, until each cycle brings one.
    """
    pace = cycles_an_element(op, generation, accumulates=shape.accumulates)
    strided = min(pace * max(1, shape.stride), max(pace, Fraction(1)))
    cycles = int(-(-num_elements * strided // 1))
    return op.overhead_cycles[generation.arch] + cycles * (2 if shape.has_conflict else 1)


def shares_port(first: int, second: int) -> bool:
    """Whether reads that begin at two word addresses have to take turns."""
    return (first - second) % BANKS_THAT_CONFLICT == 0
