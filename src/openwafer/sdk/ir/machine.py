"""What code touches of its PE without the fabric: memory, mailbox, task bits, counters."""

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.ir.function import DSDS, Type
from openwafer.sdk.ir.numbers import num_words
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import BlockKind, Trap

COORDINATES: Final = {
    "x": 0,
    "y": mailbox.Y_SHIFT,
    "fabric_x": mailbox.FABRIC_SHIFT,
    "fabric_y": mailbox.Y_SHIFT + mailbox.FABRIC_SHIFT,
}
"""By name: the first of its 16 bits in the mailbox's word of coordinates."""
_LOOK = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
_WORD = (1 << 64) - 1


class TrapError(Exception):
    """The code stopped for good."""

    def __init__(self, trap: Trap, value: int) -> None:
        super().__init__(f"{trap.name.lower()} ({value})")
        self.trap = trap
        self.value = value


@dataclass(frozen=True)
class Machine:
    """One PE's mailbox, shape (MAILBOX_WORDS,), and memory, shape (memory_words,)."""

    box: NDArray[np.int64]
    memory: NDArray[np.uint16]

    def is_late(self) -> bool:
        """Whether beats of operations in flight come before what the code does now."""
        in_flight = int(self.box[mailbox.IN_FLIGHT])
        return in_flight != 0 and int(self.box[mailbox.CYCLE]) >= in_flight

    def drain(self) -> None:
        """Wait until what vector operations wrote can be used."""
        waited = max(0, self.box[mailbox.DRAINED] - self.box[mailbox.CYCLE])
        self.box[mailbox.CYCLE] += waited
        self.box[mailbox.DRAINS] += waited

    def load(self, address: int, kind: Type) -> int | tuple[int, ...]:
        """Bits of a value at a byte address; traps where none can lie."""
        if kind in NARROW:
            byte = int(self._bytes(address, 1)[0])
            return byte & 1 if kind is Type.BOOL else byte
        words = self._words(address, num_words(kind))
        if kind in DSDS:
            return tuple(int(word) for word in words)
        return sum(int(word) << (16 * index) for index, word in enumerate(words))

    def store(self, address: int, kind: Type, bits: int | tuple[int, ...]) -> None:
        """Write a value; traps where none can lie."""
        if kind in NARROW:
            self._bytes(address, 1)[0] = bits
            return
        words = self._words(address, num_words(kind))
        if isinstance(bits, tuple):
            words[:] = bits
        else:
            words[:] = [(bits >> (16 * index)) & 0xFFFF for index in range(len(words))]

    def copy(self, target: int, source: int, length: int) -> None:
        """Copy bytes; traps outside of memory."""
        of, to = self._bytes(source, length), self._bytes(target, length)
        to[:] = of.copy()

    def _bytes(self, address: int, length: int) -> NDArray[np.uint8]:
        if address + length > 2 * len(self.memory):
            raise TrapError(Trap.OUT_OF_BOUNDS, address >> 1)
        return self.memory.view(np.uint8)[address : address + length]

    def _words(self, address: int, length: int) -> NDArray[np.uint16]:
        if address & 1:
            raise TrapError(Trap.MISALIGNED, address)
        begin = address >> 1
        if begin + length > len(self.memory):
            raise TrapError(Trap.OUT_OF_BOUNDS, begin)
        return self.memory[begin : begin + length]

    def schedule(self, op: str, target: int) -> None:
        """Change the bits of a task, queue or microthread."""
        if op == "activate":
            self._change(mailbox.ACTIVE, 1 << target, is_set=True)
            return
        kind, number = target >> 8, target & 0xFF
        if kind == BlockKind.TASK:
            self._change(mailbox.BLOCKED, 1 << number, is_set=op == "block")
        else:
            bit = number + 8 * (kind == BlockKind.MICROTHREAD)
            self._change(mailbox.BLOCKED_QUEUES, 1 << bit, is_set=op == "block")

    def _change(self, field: int, mask: int, *, is_set: bool) -> None:
        old = int(self.box[field]) & _WORD
        new = old | mask if is_set else old & ~mask
        self.box[field] = np.uint64(new).astype(np.int64)

    def timestamp(self, word: int) -> int:
        """16 bits of the counter, the lowest first."""
        value = int(self.box[mailbox.TIMESTAMP_BASE])
        if self.box[mailbox.TIMESTAMP_IS_ON]:
            value = int(self.box[mailbox.CYCLE]) - value
        return (value >> (16 * word)) & 0xFFFF

    def control_timestamp(self, action: str) -> None:
        """Enable, disable or reset the counter; what changes nothing is ignored."""
        is_on = bool(self.box[mailbox.TIMESTAMP_IS_ON])
        cycle = self.box[mailbox.CYCLE]
        if action == "reset":
            self.box[mailbox.TIMESTAMP_BASE] = cycle if is_on else 0
        elif is_on is not (action == "enable"):
            self.box[mailbox.TIMESTAMP_BASE] = cycle - self.box[mailbox.TIMESTAMP_BASE]
            self.box[mailbox.TIMESTAMP_IS_ON] = action == "enable"

    def random(self) -> int:
        """The generator's next 16 bits."""
        drawn = state = int(self.box[mailbox.RANDOM])
        for _ in range(mailbox.RANDOM_STEPS):
            state = ((state << 1) | ((state >> 22) ^ (state >> 17)) & 1) & 0xFFFFFFFF
        self.box[mailbox.RANDOM] = state
        return drawn & 0xFFFF

    def seed(self, state: int) -> None:
        """Set the generator's state."""
        self.box[mailbox.RANDOM] = state & 0xFFFFFFFF

    def coordinate(self, axis: str) -> int:
        """A coordinate of the PE."""
        return (int(self.box[mailbox.COORDINATES]) >> COORDINATES[axis]) & 0xFFFF

    def show(self, operand: int, first: int, last: int) -> None:
        """Show the simulator what an operand of a vector operation touches."""
        memory_map, state = int(self.box[mailbox.MAP]), int(self.box[mailbox.MAP_STATE])
        if memory_map:
            look = _LOOK(ctypes.c_int64.from_address(memory_map).value)
            look(state, self.box.ctypes.data, int(self.box[mailbox.PLACE]), operand, first, last)

    def variable_at(self, word: int) -> int:
        """Number of the variable that a word of memory belongs to, as the memory's map has it."""
        memory_map = int(self.box[mailbox.MAP])
        if not memory_map:
            return mailbox.NO_VARIABLE
        return ctypes.c_uint16.from_address(memory_map + 8 + 2 * word).value

    def unwritten(self, begin: int, length: int) -> NDArray[np.uint8]:
        """1 for each of some words that nothing has written; 0 where nobody keeps book."""
        return np.unpackbits(self._unwritten_bits(), bitorder="little")[begin : begin + length]

    def note(self, begin: int, unwritten: NDArray[np.uint8]) -> None:
        """Keep book of words from `begin` on."""
        bits = self._unwritten_bits()
        every = np.unpackbits(bits, bitorder="little")
        every[begin : begin + unwritten.size] = unwritten
        bits[:] = np.packbits(every, bitorder="little")

    def _unwritten_bits(self) -> NDArray[np.uint8]:
        address, num_bytes = int(self.box[mailbox.UNWRITTEN]), MEMORY_WORDS // 8
        if not address:
            return np.zeros(num_bytes, np.uint8)
        return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))

    def count(self, number: int, more: int) -> None:
        """Raise one of the PE's counters."""
        counter = ctypes.c_int64.from_address(int(self.box[mailbox.COUNTS]) + 8 * number)
        counter.value += more

    def parameter(self, number: int) -> int:
        """Raw bits of the PE's own value of a parameter."""
        address = int(self.box[mailbox.PARAMS]) + 8 * number
        return ctypes.c_int64.from_address(address).value


NARROW: Final = frozenset((Type.BOOL, Type.I8, Type.U8))
"""Types whose values take a byte of memory."""
