"""What the names of a source stand for on a PE, in a function that waits there."""

from collections.abc import Iterator

import numpy as np

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.debug.evaluate import Evaluator
from openwafer.sdk.debug.stack import Frame
from openwafer.sdk.debug.values import Value, Values
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.program.debug_info import Home, Place, VariableInfo
from openwafer.sdk.program.program import Program


class PeLook:
    """The variables of a PE.

    Args:
        program: that runs.
        simulator: that runs it.
        pe: number of the PE.
        frame: of the function whose names are seen first; None for no function.
        depth: how many functions that frame lies above the innermost.

    Attributes:
        values: takes its values apart.
        evaluator: works out expressions over them.
    """

    def __init__(
        self, program: Program, simulator: Simulator, pe: int, frame: Frame | None, depth: int = 0
    ) -> None:
        self._program = program
        self._simulator = simulator
        self._x, self._y = program.place_of(pe)
        self._frame = frame
        self.depth = depth
        image = program.images[int(program.image_of[self._y, self._x])]
        self._globals = [program.debug.variables[one] for one in image.names.variables]
        functions = tuple(program.debug.functions[one].name for one in image.names.functions)
        self.values = Values(program.debug, functions, self.read)
        self.evaluator = Evaluator(self.find, self.values)

    def read(self, address: int, num_bytes: int) -> bytes:
        """Bytes of the PE's memory, from a byte address on."""
        first = address // WORD_BYTES
        end = -(-(address + num_bytes) // WORD_BYTES)
        words = self._simulator.read(self._x, self._y, first, end - first)
        return words.tobytes()[address - WORD_BYTES * first :][:num_bytes]

    def write(self, value: Value, content: bytes) -> None:
        """Put bytes where a value lies. Raises OpenwaferError where it lies nowhere."""
        if value.address is None:
            raise error(
                "debug-no-address",
                "it lies nowhere in the PE's memory, so it cannot be set",
                help="set a variable of the file, or one whose address code takes",
            )
        first = value.address // WORD_BYTES
        end = -(-(value.address + len(content)) // WORD_BYTES)
        words = bytearray(self.read(WORD_BYTES * first, WORD_BYTES * (end - first)))
        at = value.address - WORD_BYTES * first
        words[at : at + len(content)] = content
        self._simulator.write(self._x, self._y, first, np.frombuffer(bytes(words), np.uint16))

    def globals(self, *homes: Home) -> list[VariableInfo]:
        """The file's variables whose values are in some homes; in memory, where none is given."""
        return [one for one in self._globals if one.home in (homes or (Home.MEMORY,))]

    def locals(self) -> list[VariableInfo]:
        """The function's parameters and variables in scope, the innermost scope last."""
        if self._frame is None:
            return []
        here = self._program.places[self._frame.place]
        own = (self._program.debug.variables[one] for one in self._frame.function.variables)
        seen = {one.name: one for one in own if self._is_in_scope(one, here)}
        return list(seen.values())

    def find(self, name: str) -> Value | None:
        """The value of a name; None where nothing is called so.

        Raises OpenwaferError where it has no value now.
        """
        for one in self._named(name):
            return self.value(one)
        return None

    def _named(self, name: str) -> Iterator[VariableInfo]:
        yield from (one for one in self.locals() if one.name == name)
        yield from (one for one in self._globals if one.name == name)
        ends = [one for one in self._globals if one.name.rpartition(".")[2] == name]
        if len(ends) == 1:
            yield ends[0]

    def value(self, one: VariableInfo) -> Value:
        """The value of a variable. Raises OpenwaferError where it has none now."""
        size = self._program.debug.types[one.type].num_bytes
        match one.home:
            case Home.CONSTANT:
                return Value(one.type, one.content)
            case Home.MEMORY:
                address = WORD_BYTES * one.address
                return Value(one.type, self.read(address, size), address)
            case Home.PARAMETER:
                bits = int(self._program.parameters[self._y, self._x, one.address])
                return Value(one.type, (bits & (1 << 8 * size) - 1).to_bytes(size, "little"))
            case _:
                return self._in_slot(one, size)

    def _in_slot(self, one: VariableInfo, size: int) -> Value:
        word = self._frame.slot(one.slot) if self._frame and one.slot else None
        if word is None:
            raise error(
                "debug-no-value",
                f"{one.name} has no value here: code needs it no more, or not yet",
                help="look at it where it is used, or go back",
            )
        address = WORD_BYTES * word
        if one.home is Home.POINTED:
            address = int.from_bytes(self.read(address, WORD_BYTES), "little")
        return Value(one.type, self.read(address, size), address)

    def _is_in_scope(self, one: VariableInfo, here: Place) -> bool:
        if one.scope < 0:
            return True
        scope = self._program.places[one.scope]
        if scope.file != here.file:
            return False
        begin, end = (scope.line, scope.column), (scope.end_line, scope.end_column)
        return begin <= (here.line, here.column) <= end
