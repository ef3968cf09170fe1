"""What lints look at, and the one way in which they warn."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.machine_state import Register
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.descriptor import KIND_MASK, WORD_KIND, DsdKind
from openwafer.source import Span

Point: TypeAlias = tuple[str, int]
"""A block, and an instruction in it."""
Words: TypeAlias = Sequence[int]
"""Of a descriptor."""


@dataclass(frozen=True)
class CheckedImage:
    """An image whose analysis has found no error."""

    state: ImageState
    arch: Arch

    @cached_property
    def code(self) -> Mapping[str, Sequence[ir.Instruction]]:
        """Instructions of all functions by what they do, in the order of the code."""
        found: dict[str, list[ir.Instruction]] = defaultdict(list)
        for function in self.functions():
            for op, instructions in function.once(CheckedImage, _by_op).items():
                found[op] += instructions
        return found

    def functions(self) -> Iterator[ir.Function]:
        """All of them."""
        yield from self.state.module.functions.values()

    def line_of(self, one: ir.Instruction) -> str:
        """`file:line`."""
        file, line, *_ = self.state.tables.places[one.place].written
        return f"{file}:{line}"

    def place_of(self, one: ir.Instruction) -> str:
        """The same with the function."""
        return f"{self.line_of(one)} ({self.state.tables.places[one.place].written[3]})"

    def warning_of(self, one: ir.Instruction, code: str, message: str, help: str) -> Diagnostic:
        """A warning of the operation that an instruction is part of."""
        return warning(code, message, self.operation_of(one), help, f"at {self.place_of(one)}")

    def operation_of(self, one: ir.Instruction) -> Span | None:
        """The operation of the source that an instruction is part of."""
        return self.state.machine.operation_at(*self.state.tables.places[one.place].written[:3])


def _by_op(function: ir.Function) -> Mapping[str, Sequence[ir.Instruction]]:
    found: dict[str, list[ir.Instruction]] = defaultdict(list)
    for one in function.instructions:
        found[one.op].append(one)
    return found


def known(args: Iterable[ir.Value], kind: DsdKind) -> Iterator[Words]:
    """Descriptors of a kind among operands, as far as they are known."""
    for arg in args:
        words = arg.value if isinstance(arg, ir.Constant) else ()
        if isinstance(words, tuple) and words and words[WORD_KIND] & KIND_MASK == kind:
            yield words


def loaded_register(load: ir.Instruction) -> Register:
    """The register that a ``load_dsr`` loads."""
    return int(load.names[0]), int(load.names[1])


def leads_to(
    function: ir.Function, start: Point, end: Point, avoiding: frozenset[Point] = frozenset()
) -> bool:
    """Whether code that was at one point may come to another later, past none to be avoided."""
    blocks = {block.label: block.instructions for block in function.blocks}
    seen: set[Point] = set()
    waiting = [start]
    while waiting:
        label, index = waiting.pop()
        ways = [(label, index + 1)]
        if index + 1 == len(blocks[label]):
            ways = [(name, 0) for name in blocks[label][-1].names if name in blocks]
        if end in ways:
            return True
        waiting += (point for point in ways if point not in seen and point not in avoiding)
        seen.update(ways)
    return False


def warning(code: str, message: str, span: Span | None, help: str, *notes: str) -> Diagnostic:
    """A warning of a lint."""
    return Diagnostic(Severity.WARNING, f"csl-{code}", message, span, notes, help)
