"""The mailbox of a PE: the binary interface between compiled code and the simulator.

One row of 64-bit integers a PE. Compiled code of an image is one native function::

    int32 run(int32 image, int64 *mailbox, uint16 *memory, int32 entry, int32 is_resume)

It runs the entry of that number (a task, a launched function, a handler) from its beginning, or
goes on behind the request that it made last. It returns an :class:`Outcome`.

Time: code adds the cycles of what it executes to ``CYCLE``, which the simulator sets to the present
before each call; so a task runs ahead of the fabric until its end or its next request. Requests are
served when the fabric has reached that cycle. What does not reach the fabric (memory operations,
activation, blocking) happens inside compiled code.

Microthreads begin only by requests of the same PE, so while code runs the operations in flight can
only become fewer. ``IN_FLIGHT`` says from which cycle on they may still do something. From that
cycle on code makes :attr:`Request.SYNC` before it touches memory that an asynchronous operation of
its image may touch and before it blocks or unblocks, and it asks for every vector operation on
memory instead of running it. Where nothing is in flight it runs ahead, and nothing else differs.

A second native function computes one element of a vector operation, on raw bits::

    int64 element(int32 operation, int64 source0, int64 source1, int64 source2)

A third one belongs to the simulator. Code that runs a vector operation by itself shows it each
operand that does not begin and end in the same variable, as the memory's map has them (others may
be shown, too), before the first element::

    void look(int64 state, int64 *mailbox, int64 place, int64 operand, int64 first, int64 last)

``operand`` is :func:`operand_of` the operation, or of 0 for a loop over descriptors; ``first`` and
``last`` are the addresses of its first and last element, both inside the memory. A map is the
address of ``look`` and, from byte 8 on, for each word of memory the number of its variable, 16
bits; :data:`NO_VARIABLE` is none.

Code (:mod:`openwafer.sdk.ir.checks`) calls ``look`` also for the mistakes that it finds: then
``operand`` is that of :func:`finding_of`, ``first`` and ``last`` are what :class:`Finding` says.
"""

from enum import IntEnum, IntFlag
from typing import Final

CYCLE: Final = 0
"""Local clock of the main thread."""
ACTIVE: Final = 1
"""Bit by task id: activated, not yet run."""
BLOCKED: Final = 2
"""Bit by task id (WSE-2: colors and local tasks share the numbers)."""
BLOCKED_QUEUES: Final = 3
"""Bits 0-7 by input queue, bits 8-15 by microthread (WSE-3)."""
STREAM_OPEN: Final = 4
"""1 when the next host command may run."""
TRAP: Final = 5
"""A :class:`Trap`."""
TRAP_VALUE: Final = 6
"""What trapped: an address, an extent."""
PLACE: Final = 7
"""Index into the program's places: source line of the request or trap."""
RANDOM: Final = 8
"""State of the generator: 32 bits, shifted left with the exclusive or of bits 22 and 17 fed in."""
TIMESTAMP_BASE: Final = 9
"""While the timestamp counter runs, the cycle at which it was zero; else its value."""
TIMESTAMP_IS_ON: Final = 10
COORDINATES: Final = 11
"""Bits 0-15 x in the rectangle; from FABRIC_SHIFT on x on the fabric; from Y_SHIFT on y alike."""
FABRIC_SHIFT: Final = 16
Y_SHIFT: Final = 32
IN_FLIGHT: Final = 12
"""The first cycle whose beats are still to come; 0 while no microthread of the PE runs."""
PARAMS: Final = 13
"""Native address of the PE's record of run-time parameters (64-bit raw bits each)."""
MAP: Final = 14
"""Native address of the memory's map; 0 is none."""
DRAINED: Final = 15
"""From this cycle on what the main thread's vector operations wrote can be used."""
NO_VARIABLE: Final = 0xFFFF
WIDTH_MASK: Final = 3
"""Low bits of a variable's number: words of its elements, 1 or 2; 0 where they are other ones."""
SIGNED: Final = 4
"""Set in a variable's number where its elements are integers that have a sign."""
UNSIGNED: Final = 8
"""Set where they are integers without one."""
ELEMENT_BITS: Final = 4
"""How many bits say what its elements are."""

ARGUMENTS: Final = 16
"""Raw bits of an entry's arguments; a wavelet's 32 bits are the first."""
NUM_ARGUMENTS: Final = 16

REQUEST: Final = 32
"""A :class:`Request`."""
OPERATION: Final = 33
"""Number of a vector operation, or address of a config register, or queue."""
OPTIONS: Final = 34
"""A set of :class:`Option`."""
ACTIVATE: Final = 35
"""Task id to activate at the end; -1 is none."""
UNBLOCK: Final = 36
"""Target to unblock at the end, ``kind << 8 | id`` (:class:`BlockKind`); -1 is none."""
CONTROL_ACTIVATE: Final = 37
CONTROL_UNBLOCK: Final = 38
"""The same at the end by a control wavelet."""
MICROTHREAD: Final = 39
"""Microthread asked for; -1 leaves the choice to the machine's rule."""
INDEX: Final = 40
PRIORITY: Final = 41
"""0 low, 1 medium, 2 high; -1 is the default."""
RESULT: Final = 42
"""What a request gives back: a register's value, 1 when a FIFO operation ran to its end."""
LIMIT: Final = 43
"""Cycle past which a loop is taken for endless; `run` sets it at each call, and the host may change
it while code runs."""
MOST_CYCLES: Final = 1 << 33
"""How far it lies from the call's cycle: ten seconds of the wafer's time, far above any task."""
OPERANDS: Final = 44
"""Destination, then sources: each an :class:`OperandKind` and four words of value."""
OPERAND_WORDS: Final = 5
NUM_OPERANDS: Final = 4
OPERAND_SHIFT: Final = 2
"""Where an operation's code begins in the number of its operand."""
OPERAND_MASK: Final = (1 << OPERAND_SHIFT) - 1
RANDOM_SEED: Final = 0xDEADBEEF
RANDOM_STEPS: Final = 128
"""Shifts after each draw, which takes the low 16 bits."""
MAP_STATE: Final = OPERANDS + OPERAND_WORDS * NUM_OPERANDS
"""First argument of the map's ``look``."""
UNWRITTEN: Final = MAP_STATE + 1
"""Native address of a bit for each word of memory that nothing has written yet; 0 is none."""
ELEMENTS: Final = UNWRITTEN + 1
"""How many elements of vector operations code has computed by itself."""
STRETCH_SHIFT: Final = ELEMENTS + 1
"""Checked runs part memory into 64 stretches: how many bits of a byte address lie below its
stretch's number; the last one has all that lies behind."""
FLIGHT_USES: Final = STRETCH_SHIFT + 1
"""A bit for each stretch that operations may use which are in flight."""
FLIGHT_WRITES: Final = FLIGHT_USES + 1
"""The same of what they may write."""
LAST_STRETCH: Final = 63
BEATS: Final = FLIGHT_WRITES + 1
"""Of the cycles that code has added to CYCLE since the simulator looked last: beats of vector
operations that it ran by itself. What the next three do not name either, scalar code took."""
PAUSES: Final = BEATS + 1
"""Cycles between those beats, without those of TURNS."""
TURNS: Final = PAUSES + 1
"""Cycles between those beats in which reads of memory took turns."""
DRAINS: Final = TURNS + 1
"""Cycles in which the code waited for results of vector operations."""
COUNTS: Final = DRAINS + 1
"""Native address of the PE's counters, 64 bits each, where code counts
(:mod:`openwafer.sdk.ir.counters`); code that does not leaves it alone. Before them stand
:data:`KIND_COUNTS` others, of all vector operations."""
KIND_COUNTS: Final = 48
"""How many words of memory they read and wrote; then by code of the operation, its elements."""
ASKED: Final = COUNTS + 1
"""Where code counts, the cycle of its last request."""
STATEMENTS: Final = ASKED + 1
"""Where code is stepped, how many statements have begun (:attr:`Request.STEP`)."""
MAILBOX_WORDS: Final = 80


def operand_of(operation: int, place: int) -> int:
    """Number of an operand: `place` 0 is the destination, the sources come behind it."""
    return operation << OPERAND_SHIFT | place


FINDING: Final = 1 << 15
"""Set in the operand of a finding; above the place, from FINDING_SHIFT on, lies its kind."""
FINDING_SHIFT: Final = 8
OTHER_SHIFT: Final = 16
"""Where the second of two numbers of 16 bits begins in a word."""


class Finding(IntEnum):
    """A mistake that code, or the machine, finds; addresses are in bytes."""

    READ_OUTSIDE = 1
    """The address, and one in the variable that the access began in."""
    WRITE_OUTSIDE = 2
    DIVISION_BY_ZERO = 3
    STREAM_OPENED_TWICE = 4
    ELEMENT_WIDTH = 5
    """The operation's code with the descriptor's base word behind it; words of the variable's."""
    EXTENTS = 6
    """The operation's code with the descriptor's base word behind it; this extent and the length,
    15 bits each."""
    READ_IN_FLIGHT = 7
    """Asked for by code: the address, and how many bytes. Told: the address; the microthread."""
    WRITE_IN_FLIGHT = 8
    OPERAND_IN_FLIGHT = 9
    """The operation's code with an address's word behind it; the microthread."""
    CONTROL_AS_DATA = 10
    """The operation's code with the color behind it."""
    NO_SWITCH = 11
    """The operation's code with the color behind it."""
    READ_UNWRITTEN = 12
    """The address, and how many bytes."""
    LOCAL_UNSET = 13
    OPERAND_UNWRITTEN = 14
    """Asked for by code: of the operation of the request. Told: its code with an address's word
    behind it."""
    SHIFT_TOO_FAR = 15
    """How many bits, and how many the operand has."""
    STREAM_IN_FLIGHT = 16
    """Told: nothing; the microthread."""
    OPERAND_OF_STACK = 17
    """The operation's code with an address's word behind it."""
    WRAPPED = 18
    """The operands' bits; the place is :func:`wrap_of` what was computed."""
    OVERRUN = 19
    """Told: first word of the first element with the lowest word behind it; the highest word. Its
    operand is :func:`operand_of`, or a role of a map."""


def finding_of(kind: Finding, place: int = 0) -> int:
    """What `look` is told of a finding as the operand; `place` is the one that it concerns.

    It lies below 256.
    """
    return FINDING | kind << FINDING_SHIFT | place


def read_finding(number: int) -> tuple[Finding, int]:
    """The kind and the place of :func:`finding_of`; what is no finding is an overrun's operand."""
    if not number & FINDING:
        return Finding.OVERRUN, number
    number &= ~FINDING
    return Finding(number >> FINDING_SHIFT), number & (1 << FINDING_SHIFT) - 1


WRAP_OPS: Final = ("add", "sub", "mul")
WRAP_TYPES: Final = ("i8", "u8", "i16", "u16", "i32", "u32")
"""Types whose arithmetic may be looked at."""


def wrap_of(op: str, kind: str) -> int:
    """What a finding of a wrap has as its place: operation and type."""
    return WRAP_OPS.index(op) | WRAP_TYPES.index(kind) << OPERAND_SHIFT


def read_wrap(number: int) -> tuple[str, str]:
    """Operation and type of :func:`wrap_of`."""
    return WRAP_OPS[number & OPERAND_MASK], WRAP_TYPES[number >> OPERAND_SHIFT]


class Outcome(IntEnum):
    """What `run` returns."""

    SUSPENDED = 0
    """A request waits in the mailbox."""
    FINISHED = 1
    TRAPPED = 2


class Trap(IntEnum):
    """Why compiled code stopped for good."""

    NONE = 0
    ASSERTION = 1
    OUT_OF_BOUNDS = 2
    STACK_OVERFLOW = 3
    UNREACHABLE = 4
    ENDLESS_LOOP = 5
    MISALIGNED = 6


class Request(IntEnum):
    """What compiled code asks of the machine."""

    NONE = 0
    VECTOR = 1
    READ_REGISTER = 2
    """OPERATION is the word address; the value comes back in RESULT."""
    WRITE_REGISTER = 3
    """OPERATION is the word address, the first operand's value is written."""
    FLUSH_QUEUE = 4
    PRINT = 5
    """Operand 0 and 1 are scalars: address and number of 16-bit characters."""
    LOAD_DSR = 6
    """OPERATION is file << 8 | number (:class:`DsrFile`); operand 0 the DSD; options apply."""
    SET_FIFO_LENGTHS = 7
    """OPERATION is the FIFO; operands 0 and 1 are read and write length, -1 leaves one."""
    SET_DSR_BASE = 8
    """OPERATION is file << 8 | number; operand 0 is the new address."""
    SYNC = 9
    """Nothing but that the beats of this cycle come first; takes no time."""
    STEP = 10
    """The same where a statement begins, of code that is stepped (:mod:`openwafer.sdk.ir.stepped`):
    the main thread may be held here."""


class Option(IntFlag):
    """Options of a vector operation or of a DSR."""

    ASYNC = 1
    SAVE_ADDRESS = 2
    SINGLE_STEP = 4
    TERMINATE_ON_CONTROL = 8
    HAS_INDEX = 16
    FILTER = 32
    """Drop data wavelets until `extent` control wavelets came (``@dfilt``)."""
    TELLS_WRAPS = 64
    """Tell of sums and differences that the type of the variable they go to cannot hold."""


class OperandKind(IntEnum):
    """First word of an operand."""

    NONE = 0
    SCALAR = 1
    """Raw bits in the first value word."""
    DSD = 2
    """Eight or sixteen 16-bit words (:mod:`~openwafer.sdk.program.descriptor`), packed."""
    DSR = 3
    """Number of the register; the file follows from the operand's place."""
    POINTER = 4
    """Address of a scalar destination."""
    FIFO = 5
    """Number of the FIFO in the image."""


class BlockKind(IntEnum):
    """Kind of a target of block and unblock."""

    TASK = 0
    INPUT_QUEUE = 1
    MICROTHREAD = 2


class DsrFile(IntEnum):
    """The register files."""

    DESTINATION = 0
    SOURCE0 = 1
    SOURCE1 = 2
