"""What the analysis of one image collects: memory, functions, and the machine's start-up state."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.lanes import Lanes
from openwafer.sdk.csl.sema.debug_tables import DebugTables
from openwafer.sdk.csl.sema.layout_state import Surroundings
from openwafer.sdk.csl.sema.machine_state import MachineState
from openwafer.sdk.csl.types import Type, num_words
from openwafer.sdk.csl.types import align_words as natural_alignment
from openwafer.sdk.csl.values import Module, Variable
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program import image
from openwafer.source import Span

FIRST_ADDRESS: Final = 16
"""Lower words stay unused, so that no valid address is 0."""


@dataclass(frozen=True, slots=True)
class UnsetLocal:
    """A local variable that is declared without a value.

    Attributes:
        function: name of the IR function that has it.
        slot: its register slot there.
        name: in the source.
    """

    function: str
    slot: str
    name: str
    span: Span


@dataclass
class ImageState:
    """Lists grow in the order in which the analysis meets things.

    Attributes:
        module: functions; its globals are made from `variables` at the end.
        next_address: first free word.
        planned: first words of variables that have an address already.
        pending: bodies that are still to be analysed.
        machine: tasks, queues, DSRs and the rest of the start-up state.
        surroundings: the layout that the image is for; None for a file compiled alone.
        tables: of the source; the images of a program share them.
        definitions: what modules export, by the name that links it with extern declarations.
        parameters: numbers that each PE has its own of, with their types.
        modules: every import of a file, by the prefix of its symbols.
        unset_locals: those of functions that were analysed for this image.
    """

    module: ir.Module
    next_address: int = FIRST_ADDRESS
    planned: Mapping[str, int] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    pending: deque[Callable[[], None]] = field(default_factory=deque)
    instances: dict[tuple[object, ...], tuple[str, Type]] = field(default_factory=dict)
    entries: list[image.Entry] = field(default_factory=list)
    exported_symbols: list[tuple[str, str]] = field(default_factory=list)
    exported_functions: list[tuple[str, int]] = field(default_factory=list)
    machine: MachineState = field(default_factory=MachineState)
    surroundings: Surroundings | None = None
    tables: DebugTables = field(default_factory=DebugTables)
    definitions: dict[str, tuple[Module, ast.Declaration]] = field(default_factory=dict)
    parameters: list[tuple[Lanes, ir.Type]] = field(default_factory=list)
    modules: dict[str, Module] = field(default_factory=dict)
    unset_locals: list[UnsetLocal] = field(default_factory=list)

    def parameter(self, value: Lanes, kind: ir.Type) -> int:
        """Number of the parameter that holds a value."""
        for number, (known, known_kind) in enumerate(self.parameters):
            if known_kind is kind and np.array_equal(known.numbers, value.numbers):
                return number
        self.parameters.append((value, kind))
        return len(self.parameters) - 1

    def new_variable(
        self, name: str, kind: Type, words: list[int], *, align_words: int = 1
    ) -> Variable:
        """Place a global where it was planned, or behind the ones before it.

        Args:
            name: it gets a number where another variable has it.
            kind: its type.
            words: content at start-up.
            align_words: what the program asks for, beyond what the type needs.
        """
        unique = self.unique_name(name, self.variables)
        least = max(align_words, natural_alignment(kind))
        behind = -(-self.next_address // least) * least
        address = self.planned.get(unique, behind)
        variable = Variable(unique, kind, address, words, align_words=align_words)
        self.variables[unique] = variable
        self.next_address = max(self.next_address, address + max(1, num_words(kind)))
        return variable

    @staticmethod
    def unique_name(name: str, taken: dict[str, Variable] | dict[str, ir.Function]) -> str:
        """`name`, or with the first free number behind it."""
        unique, count = name, 1
        while unique in taken:
            unique, count = f"{name}.{count}", count + 1
        return unique

    def globals(self) -> list[ir.Global]:
        """Every variable as the IR declares it, by address."""
        placed = sorted(self.variables.values(), key=lambda variable: variable.address)
        return [
            ir.Global(v.name, v.address, num_words(v.type), tuple(v.words), v.is_mutable)
            for v in placed
        ]

    def addresses(self) -> dict[str, int]:
        """First word of each variable."""
        return {name: one.address for name, one in self.variables.items()}

    @property
    def free_words(self) -> int:
        """Words of a PE's memory behind the variables; negative when they do not fit."""
        return MEMORY_WORDS - self.next_address
