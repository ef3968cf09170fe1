"""What each instruction of the intermediate representation takes, gives and means.

Letters of the operands and results: ``T`` any scalar type (the same wherever it stands), ``S`` and
``N`` any scalar type of their own, ``I`` an integer, ``B`` bool, ``P`` a pointer, ``D`` a
descriptor, ``*`` more values of any type, ``.`` nothing. Behind them stand the letters of
:class:`Effect`; an operation without any gives what follows from its operands alone.

Names are the immediate words of an instruction. `vector` takes the operation's name, then the word
``fabric`` when an operand is a fabric or FIFO or mem4d descriptor or a DSR, then options;
`load_dsr` takes file, number and options (:data:`VECTOR_OPTIONS`). `drain`
(:mod:`openwafer.sdk.ir.drains`), `sync` and the word ``ordered`` of `vector`
(:mod:`openwafer.sdk.ir.order`), `check` (:mod:`openwafer.sdk.ir.checks`) and `step`
(:mod:`openwafer.sdk.ir.stepped`) stand only in code whose time is counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final


class Effect(StrEnum):
    """What an operation does or needs beyond its operands and its result."""

    READS = "r"
    """Reads memory."""
    WRITES = "w"
    """Writes memory."""
    VARIABLES = "v"
    """Uses the function's own variables."""
    ADDRESSES = "a"
    """Takes an address for a number, or a number for an address; words of descriptors do."""
    PLACE = "l"
    """Gives what differs from PE to PE."""
    STATE = "p"
    """Reads or changes what the PE has beside its memory."""
    CLOCK = "t"
    """Reads or changes the clock."""
    ASSERTS = "x"
    """May stop the simulation."""
    SUSPENDS = "s"
    """The machine may have to serve a request before the code goes on."""
    CALLS = "c"
    """Does what a function does."""
    ENDS = "e"
    """Ends a block."""
    BORDER = "b"
    """The machine's compiler moves no code over it."""
    DRAINS = "d"
    """Waits for what vector operations wrote."""
    IN_ORDER = "o"
    """Sees, and is seen by, the operations in flight in the order of cycles."""


@dataclass(frozen=True)
class Operation:
    """One row of the contract.

    Attributes:
        args: letters of the operands.
        result: letter of the result.
        effects: see :class:`Effect`.
        names: what the immediate words are; a trailing ``*`` takes more.
        meaning: in a sentence.
    """

    args: str
    result: str
    effects: frozenset[Effect]
    names: tuple[str, ...]
    meaning: str

    @cached_property
    def may_suspend(self) -> bool:
        """Whether the machine may have to serve a request before the code goes on."""
        return Effect.SUSPENDS in self.effects

    @cached_property
    def is_terminator(self) -> bool:
        """Whether it ends a block."""
        return Effect.ENDS in self.effects


MATH_FUNCTIONS: Final = frozenset(
    ("sqrt", "exp", "log", "sin", "cos", "tanh", "pow", "floor", "ceil", "trunc", "abs")
)
"""Names of `math`; `pow` takes two operands. Computed in double precision, rounded once."""

FABRIC: Final = "fabric"
"""Marks a vector operation that only the machine can do."""

VECTOR_OPTIONS: Final[Mapping[str, bool]] = MappingProxyType(
    {
        "async": False,
        "activate": True,
        "unblock": True,
        "terminate_on_control": False,
        "control_activate": True,
        "control_unblock": True,
        "index": True,
        "microthread": True,
        "priority": True,
        "save_address": False,
        "single_step": False,
        "filter": False,
        "tells_wraps": False,
    }
)
"""Options of `vector` and `load_dsr`, and whether each takes one more operand, in their order.

`activate` and `control_activate` take a task id, `unblock` and `control_unblock` a target of
``kind << 8 | id``, `index` a u16, `microthread` and `priority` a number.
"""

ORDERED: Final = "ordered"
"""Marks a vector operation on memory that becomes a request while an operation is in flight."""

NOTED: Final = "noted"
"""Marks one of checked code, which keeps book of the words that it reads and writes."""

MARKS: Final = frozenset((FABRIC, ORDERED, NOTED))
"""All words of `vector` that are no options."""

ROLES: Final[Mapping[str, int]] = MappingProxyType({"w1": 0, "r1": 1, "w2": 2, "r2": 3, "n": -1})
"""What a loop does with a descriptor that it takes an element of in each turn.

It writes or reads elements of one or two words, or only ends when the descriptor does. The loop has
as many turns as the shortest one has elements. The numbers are what `look` of the mailbox is given
as the operand of no operation.
"""

_TABLE = """
add               TT  T  -     *             sum; "wraps": it may leave its type
sub               TT  T  -     -             difference
mul               TT  T  -     -             product
div               TT  T  -     -             quotient; integers truncate; by zero all bits set
rem               TT  T  -     -             remainder, sign of the dividend; by 0 the dividend
and               TT  T  -     -             bitwise and
or                TT  T  -     -             bitwise or
xor               TT  T  -     -             bitwise exclusive or
shl               TI  T  -     -             shift left; by the width or more gives 0
shr               TI  T  -     -             shift right, arithmetic where the type is signed
eq                TT  B  -     -             equal
ne                TT  B  -     -             not equal; true for NaN
lt                TT  B  -     -             less
le                TT  B  -     -             less or equal
gt                TT  B  -     -             greater
ge                TT  B  -     -             greater or equal
neg               T   T  -     -             negation
not               B   B  -     -             logical not
bitnot            T   T  -     -             all bits inverted
cast              S   N  -     -             conversion; floats truncate and saturate to integers
bitcast           S   N  -     -             the same bits as another type of that width
math              T*  T  -     function      a function of the real numbers
get               .   T  v     slot          value of a register slot
set               T   .  v     slot,*        a register slot takes a value; "unset": it has none yet
slot_address      .   P  v     slot          address of a memory slot
ptr_add           PI  P  -     -             pointer moved by a signed number of words
byte_add          PI  P  -     -             pointer moved by a signed number of bytes
word_of           P   N  a     -             word that a pointer's byte is a part of, as u16
at_word           I   P  a     -             pointer to a word
load              P   T  rdo   -             value at an address
store             PT  .  wo    -             an address takes a value
copy              PPI .  rwbdo -             bytes from the second address to the first
call              *   T  cb    function      call, arguments in order
call_indirect     *   T  cab   -             call of the function that is the first operand
dsd_get           D   N  a     word          a 16-bit word of a descriptor, as u16
dsd_set           DI  D  a     word          the descriptor with one 16-bit word replaced
vector            *   B  rwsb  operation,*   destination, sources, options; false: ended early
show              D*  .  p     role,*        what a loop is to touch of descriptors: see ROLES
load_dsr          D*  .  rsp   file,number,* a DSR takes a descriptor and options
activate          I   .  p     -             mark a task id active
block             I   .  po    -             block a target, kind << 8 | id
unblock           I   .  po    -             unblock a target
read_register     I   N  spbd  -             a config register by word address, as u16
write_register    II  .  spbd  -             a config register takes a value
flush_queue       I   .  spb   -             run the empty-queue handler once a queue is empty
set_fifo_lengths  II  .  spb   fifo          read and write length of a FIFO; negative leaves it
set_dsr_base      IP  .  spb   -             the DSR file << 8 | number takes a base address
timestamp         .   N  t     word          16 bits of the timestamp counter, as u16
timestamp_control .   .  tbd   action        enable, disable or reset the counter
random            .   N  p     -             next 16 bits of the generator, as u16
seed_random       I   .  p     -             the generator takes a state of 32 bits
coordinate        .   N  l     axis          x, y, fabric_x or fabric_y, as u16
parameter         .   T  l     number        the PE's own value of a parameter
open_stream       .   .  p     -             the next host command may run
print             PI  .  rspbd -             write 16-bit characters to the simulation log
assert            B   .  x     -             stop the simulation when false
drain             .   .  t     -             what vector operations wrote can be used
sync              .   .  sb    -             beats of operations in flight until now come first
step              .   .  sb    -             a statement begins, before which code may be stopped
check             *   .  p     kind,*        tell of a mistake of the program
jump              .   .  e     block         go on there
branch            B   .  e     then,else     go on there or there
switch            T*  .  e     default,*     go on at the block of the equal constant
return            *   .  e     -             end the function
unreachable       .   .  xe    -             a trap
"""


def _rows() -> Iterator[tuple[str, Operation]]:
    for line in _TABLE.strip().splitlines():
        name, args, result, letters, names, meaning = line.split(maxsplit=5)
        effects = frozenset(Effect(letter) for letter in letters.replace("-", ""))
        words = () if names == "-" else tuple(names.split(","))
        yield name, Operation(args.replace(".", ""), result, effects, words, meaning)


OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(dict(_rows()))
"""The contract of every instruction."""


def with_effect(*effects: Effect) -> frozenset[str]:
    """Names of the operations that have at least one of some effects."""
    return frozenset(name for name, one in OPERATIONS.items() if one.effects & {*effects})


CALLS: Final = with_effect(Effect.CALLS)
SYNCED: Final = with_effect(Effect.IN_ORDER)
PURE: Final = frozenset(
    name for name, one in OPERATIONS.items() if one.result != "."
) - with_effect(Effect.WRITES, Effect.STATE, Effect.CLOCK, Effect.SUSPENDS, Effect.CALLS)
"""What only gives a value, the same until something that it reads is changed."""
