"""What one instruction takes of the machine: issue cycles, and cycles until its result is there.

The model (docs/design/timing.md): one instruction a cycle, in order; a load's result is there after
four cycles, a float operation's after two, an integer operation's after one. Wider integers take an
instruction for each 16 bits. Figures that are estimates stand here, each with its reason.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from openwafer.sdk.arch.generation import WORD_BYTES, Generation
from openwafer.sdk.arch.pace import load_cycles
from openwafer.sdk.arch.timing import Timing
from openwafer.sdk.ir.arithmetic import BINARY
from openwafer.sdk.ir.function import (
    DSDS,
    Constant,
    Function,
    Instruction,
    Module,
    Register,
    Type,
    Value,
)
from openwafer.sdk.ir.numbers import FLOATS, INTEGERS, SIGNED, num_words
from openwafer.sdk.ir.suspension import calls, recursive_functions


class Price(NamedTuple):
    """Issue cycles, and cycles from the first of them to the result."""

    slots: int
    latency: int


FREE: Final = Price(0, 0)
ONE: Final = Price(1, 1)
# Two conversions, a comparison and a difference, each of which waits for the one before.
_ROUNDING_STEPS: Final = 4
# A signed number is rounded toward zero: its sign, masked, is added before the shift.
_SIGNED_SHIFT: Final = 4
# A function of this length is taken to be inlined, as one with a single call is.
_INLINED_INSTRUCTIONS: Final = 30
# Their low words follow from the low words of their operands.
_LOW_WORDS_OF_LOW_WORDS: Final = BINARY - {"div", "rem"} | {"neg", "bitnot"}
# A compiler takes the multiplier where a product would become more instructions than this.
_MOST_SHIFTS: Final = 4
# Words of the clock are operands of the instruction that stores them.
_WITHIN_THE_WORD: Final = frozenset(("bitcast", "slot_address", "parameter", "assert", "timestamp"))


def price(instruction: Instruction, generation: Generation, needed: int) -> Price:
    """Price of what is neither memory access, descriptor, call nor the end of a block.

    Args:
        instruction: the instruction.
        generation: the machine.
        needed: low words of its result that something needs (:func:`needed_words`).
    """
    kind = instruction.args[0].type if instruction.args else instruction.type
    words = 1 if kind is Type.VOID or kind in DSDS else num_words(kind)
    if instruction.op in _LOW_WORDS_OF_LOW_WORDS:
        words = min(words, needed)
    timing = generation.timing
    match instruction.op:
        case op if op in _WITHIN_THE_WORD:
            return FREE
        case "div":
            is_float = kind in FLOATS
            cycles = timing.divide_cycles if is_float else _quotient_cycles(instruction, timing)
            return Price(cycles, cycles)
        case "rem" if is_mask(instruction):
            cycles = _shift_cycles(kind)
            return Price(cycles, cycles)
        case "rem":
            # Of the quotient, which is computed before.
            return Price(words**2 + words, words**2 + words)
        case "math":
            return _math(instruction.names[0], timing)
        case "cast":
            return _cast(kind, instruction.type, timing)
        case "mul" if kind not in FLOATS:
            cycles = _product_cycles(words, instruction.args)
            return Price(cycles, cycles)
        case _ if kind in FLOATS:
            return Price(1, timing.float_latency)
        case _:
            return Price(words, words)


def needed_words(instructions: Sequence[Instruction]) -> dict[int, int]:
    """By value, the low words that something in its block needs: an address needs one."""
    needed: dict[int, int] = {}
    for one in reversed(instructions):
        limit = num_words(one.type) if one.type in INTEGERS else 0
        if one.op in _LOW_WORDS_OF_LOW_WORDS:
            limit = needed.get(one.result, limit)
        elif one.op != "cast":
            limit = 0
        for arg in one.args:
            if isinstance(arg, Register) and arg.type in INTEGERS:
                words = num_words(arg.type)
                words = min(words, limit) if limit else words
                needed[arg.number] = max(words, needed.get(arg.number, 1))
    return needed


def _math(name: str, timing: Timing) -> Price:
    """Of a function of the numbers; `abs` only takes the sign bit away."""
    match name:
        case "abs":
            return ONE
        case "floor" | "ceil" | "trunc":
            return Price(_ROUNDING_STEPS, _ROUNDING_STEPS * timing.float_latency)
        case _:
            return Price(timing.function_cycles, timing.function_cycles)


def _product_cycles(words: int, args: Sequence[Value]) -> int:
    """Of integers, which may be a product with a constant."""
    factors = [
        arg.value for arg in args if isinstance(arg, Constant) and isinstance(arg.value, int)
    ]
    return constant_product_cycles(words, factors[0]) if factors else words**2


def constant_product_cycles(words: int, factor: int) -> int:
    """Of a product with a constant: shifts and sums of few bits, else the multiplier.

    Args:
        words: of the product.
        factor: the constant.
    """
    if factor == 0:
        return words**2
    odd = abs(factor) // (factor & -factor)
    is_shifted, num_bits = odd != abs(factor), min(odd.bit_count(), (odd + 1).bit_count() + 1)
    # The odd factor takes a shift and a sum for each bit but the first; what is even, one more.
    shifts = 2 * (num_bits - 1) + is_shifted
    return words * shifts if 0 < shifts <= _MOST_SHIFTS else words**2


def _quotient_cycles(instruction: Instruction, timing: Timing) -> int:
    """Of an integer division: a shift, a multiplication, or a routine."""
    words, divisor = num_words(instruction.type), instruction.args[1]
    if _is_by_power_of_two(instruction):
        return _shift_cycles(instruction.type)
    if isinstance(divisor, Constant) and isinstance(divisor.value, int):
        return constant_quotient_cycles(words, divisor.value)
    return timing.quotient_bit_cycles * 16 * words


def constant_quotient_cycles(words: int, divisor: int) -> int:
    """Of an unsigned quotient with a constant: a shift, or the multiplier.

    Args:
        words: of the quotient.
        divisor: the constant.
    """
    # High half of the product with the divisor's inverse, shifted.
    return words if is_power_of_two(divisor) else (2 * words) ** 2 + words


def constant_remainder_cycles(words: int, divisor: int) -> int:
    """Of an unsigned remainder of such a quotient: a mask, or both and the difference."""
    if is_power_of_two(divisor):
        return words
    return constant_quotient_cycles(words, divisor) + words**2 + words


def is_power_of_two(number: int) -> bool:
    """Whether it is one, or what is below zero by one."""
    return abs(number).bit_count() == 1


def _shift_cycles(kind: Type) -> int:
    """Of a shift or a mask in place of a division."""
    return num_words(kind) * (_SIGNED_SHIFT if kind in SIGNED else 1)


def is_mask(instruction: Instruction) -> bool:
    """Whether a remainder needs no quotient."""
    return instruction.op == "rem" and _is_by_power_of_two(instruction)


def _is_by_power_of_two(instruction: Instruction) -> bool:
    divisor = instruction.args[1]
    if not isinstance(divisor, Constant) or not isinstance(divisor.value, int):
        return False
    return instruction.type in INTEGERS and is_power_of_two(divisor.value)


def _cast(source: Type, target: Type, timing: Timing) -> Price:
    if source in FLOATS or target in FLOATS:
        return Price(1, timing.float_latency)
    if num_words(target) > num_words(source):
        return ONE
    return FREE


def accesses(words: int) -> int:
    """Loads or stores of so many words: one for each 32 bits."""
    return (words + 1) // 2


def copy_slots(length: object) -> int:
    """Issue cycles of a copy: a load and a store for each 32 bits.

    A length known at run time counts as that of one element.
    """
    num_bytes = length.value if isinstance(length, Constant) else 1
    words = -(-num_bytes // WORD_BYTES) if isinstance(num_bytes, int) else 1
    return 2 * accesses(words)


def edge_cycles(
    function: Function, index: int, generation: Generation, ways: dict[str, str]
) -> tuple[int, ...]:
    """Cycles from the end of block `index` to each of its targets.

    Args:
        function: whose block it is.
        index: of the block.
        generation: the machine.
        ways: of :func:`shortcuts`.
    """
    block = function.blocks[index]
    last = block.instructions[-1]
    timing = generation.timing
    not_taken, taken = timing.branch_cycles
    behind = function.blocks[index + 1].label if index + 1 < len(function.blocks) else ""
    stepped = {one.label for one in function.blocks if one.is_stepped}
    if block.is_stepped or (block.is_loop_end and last.names[0] in stepped):
        return (0,) * len(last.names)
    match last.op:
        case "jump" if last.names[0] in stepped:
            # Its descriptors go into registers, as those of a vector operation do.
            shown = [len(one.args) for one in block.instructions if one.op == "show"]
            return (load_cycles(max(shown, default=0), timing.load_latency),)
        case "jump" if block.is_loop_end:
            # A loop's cycles hold a comparison and a step, which stand in its blocks, and the test
            # that a compiler puts at the end, which here is the head's branch.
            return (timing.loop_cycles - not_taken - 2,)
        case "jump":
            target = ways[last.names[0]]
            return (0 if target in ("", ways.get(behind)) else taken,)
        case "branch":
            first = timing.loop_cycles - 2 if block.is_loop_end else not_taken
            return (first, taken)
        case "switch":
            before = (not_taken + 1) * (len(last.names) - 1)
            return (before, *((not_taken + 1) * n + taken + 1 for n in range(len(last.names) - 1)))
        case _:
            return (0,) * len(last.names)


def shortcuts(function: Function) -> dict[str, str]:
    """Where a jump to each block ends: behind blocks that only jump on; "" is a bare return."""
    blocks = {block.label: block for block in function.blocks}

    def follow(label: str, seen: frozenset[str]) -> str:
        (last, *_), only = blocks[label].instructions[-1:], len(blocks[label].instructions) == 1
        if not only or label in seen or blocks[label].is_loop_end:
            return label
        if last.op == "return" and not last.args:
            return ""
        return follow(last.names[0], seen | {label}) if last.op == "jump" else label

    return {label: follow(label, frozenset()) for label in blocks}


def inlined_functions(module: Module) -> frozenset[str]:
    """Functions that the machine's compiler puts in the place of their calls."""
    counts = Counter(
        one.names[0]
        for function in module.functions.values()
        for one in calls(function)
        if one.op == "call"
    )
    recursive = recursive_functions(module)
    return frozenset(
        name
        for name, count in counts.items()
        if name not in recursive and (count == 1 or _is_short(module.functions[name]))
    )


def _num_instructions(function: Function) -> int:
    return sum(one.op not in ("show", "drain") for one in function.instructions)


def _is_short(function: Function) -> bool:
    length = function.once(_is_short, _num_instructions)
    return length <= _INLINED_INSTRUCTIONS
