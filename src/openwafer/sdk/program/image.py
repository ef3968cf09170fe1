"""One image: the code and memory that all PEs with the same source and parameters share."""

import math
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.program.debug_info import ImageNames
from openwafer.sdk.program.routing import ColorConfig

_BYTES: Final = frozenset(("bool", "i8", "u8"))


class TaskKind(StrEnum):
    """What activates a task."""

    LOCAL = "local"
    DATA = "data"
    CONTROL = "control"


@dataclass(frozen=True)
class Symbol:
    """A named place in a PE's memory.

    Attributes:
        name: as an ELF symbol table would have it: ``x`` or ``module.x``.
        address: first word.
        num_words: length.
        element_type: name of a scalar type, or ``struct``, ``dsd``.
        shape: of an array; empty for a scalar.
    """

    name: str
    address: int
    num_words: int
    element_type: str
    shape: tuple[int, ...] = ()

    @property
    def type_name(self) -> str:
        """Its type in words, without the fields of a struct."""
        dims = ", ".join(map(str, self.shape))
        return f"[{dims}]{self.element_type}" if dims else self.element_type

    @property
    def num_bytes(self) -> int:
        """Length of the content: less than the words where numbers of 8 bits end within one."""
        if self.element_type in _BYTES:
            return math.prod(self.shape)
        return WORD_BYTES * self.num_words


@dataclass(frozen=True)
class Entry:
    """A function that the machine starts; its number is its place in the image.

    Attributes:
        function: name in the image's code.
        parameters: scalar types of its parameters.
    """

    function: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskBinding:
    """A task id's entry; ``task_id`` counts colors or queues for data tasks (by generation)."""

    kind: TaskKind
    task_id: int
    entry: int


@dataclass(frozen=True)
class QueueBinding:
    """A queue's color from start-up on.

    Attributes:
        priority: of microthreads that read from it, where they have no other; -1 for none.
        is_chosen: by the compiler, not by the program.
    """

    is_input: bool
    queue: int
    color: int
    priority: int = -1
    is_chosen: bool = False


@dataclass(frozen=True)
class Fifo:
    """A FIFO over an array of the PE's memory; its number is its place in the image.

    Attributes:
        destination: register of the destination file that stands for it; -1 is none.
        source: register of the second source file that stands for it; -1 is none.
        full_action: what an operation does that finds no space, a :class:`FifoAction`.
        empty_action: what one does that finds no element.
        priority: of microthreads that use it, low, medium or high, where they have no other.
    """

    symbol: str
    address: int
    num_words: int
    element_words: int
    activate_push: int = -1
    activate_pop: int = -1
    is_simd: bool = False
    destination: int = -1
    source: int = -1
    full_action: int = 0
    empty_action: int = 0
    priority: int = 0


class FifoAction(IntEnum):
    """What happens at a full or an empty FIFO."""

    TEST_OR_SUSPEND = 0
    """A synchronous operation ends and gives false, an asynchronous one waits."""
    TERMINATE = 1
    SUSPEND = 2
    FAULT = 3


@dataclass(frozen=True)
class TaskRotation:
    """A task that takes the place of a data task each time that a counter is at its limit.

    Attributes:
        queue: input queue of the data task.
        entry: of the task that takes its place.
        first: value of the counter at start-up.
        limit: starts of the data task between two of the other.
    """

    queue: int
    entry: int
    first: int
    limit: int


@dataclass(frozen=True)
class DsrLoad:
    """Content of a DSR at start-up: the words of a DSD and options as in the mailbox."""

    file: int
    number: int
    words: tuple[int, ...]
    options: int = 0
    activate: int = -1
    unblock: int = -1
    control_activate: int = -1
    control_unblock: int = -1
    microthread: int = -1
    priority: int = -1


@dataclass(frozen=True)
class RegisterWrite:
    """A config register's value at load."""

    address: int
    value: int


@dataclass(frozen=True)
class Start:
    """State of a PE before its first cycle: bit masks as in the mailbox."""

    active: int = 0
    blocked: int = 0
    blocked_queues: int = 0


@dataclass(frozen=True)
class Image:
    """See the module.

    Attributes:
        name: file and parameters, for people.
        code: text of the intermediate representation (:mod:`openwafer.sdk.ir`).
        data: bytes of memory from word 0 on.
        stack_base: first word behind data and code; frames grow from there.
        code_words: memory words that the machine's code would take, as estimated.
        exported_symbols: host's name and symbol of each exported variable or pointer.
        exported_functions: host's name and entry of each exported function.
        teardown_handlers: color and entry.
        empty_queue_handlers: queue and entry.
        colors: configurations that the code makes for the PE it runs on.
        has_separate_control_table: control tasks do not share their ids with other tasks.
        parameters: name and scalar type of the parameters that each PE has a value of its own of,
            in the order of its record.
        rotations: pairs of tasks that take turns, two at most.
        control_offsets: input queue, and what is added to the control task ids it brings.
        names: what its source calls things; images that differ in nothing else are equal.
    """

    name: str
    code: str = field(repr=False)
    data: bytes = field(repr=False)
    stack_base: int
    code_words: int
    symbols: tuple[Symbol, ...] = field(default=(), repr=False)
    entries: tuple[Entry, ...] = field(default=(), repr=False)
    tasks: tuple[TaskBinding, ...] = field(default=(), repr=False)
    queues: tuple[QueueBinding, ...] = field(default=(), repr=False)
    fifos: tuple[Fifo, ...] = field(default=(), repr=False)
    dsrs: tuple[DsrLoad, ...] = field(default=(), repr=False)
    registers: tuple[RegisterWrite, ...] = field(default=(), repr=False)
    start: Start = Start()
    exported_symbols: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    exported_functions: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    teardown_handlers: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    empty_queue_handlers: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    colors: tuple[tuple[int, ColorConfig], ...] = field(default=(), repr=False)
    has_separate_control_table: bool = False
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    rotations: tuple[TaskRotation, ...] = field(default=(), repr=False)
    control_offsets: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    names: ImageNames = field(default=ImageNames(), repr=False, compare=False)

    @property
    def file(self) -> str:
        """The file of its code, its name without the parameters."""
        return self.name.partition("(")[0]
