"""Builds the blocks of one IR function."""

from typing import Final

from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.operations import OPERATIONS
from openwafer.sdk.program.debug_info import Home

_HOMES: Final = {"slot_address": Home.SLOT, "get": Home.POINTED}


class FunctionBuilder:
    """Appends instructions to the current block; drops them where no control arrives.

    A value may be used in any block that its definition dominates: the builder carries it there in
    a slot.
    """

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.place = 0
        self._block: ir.Block | None = None
        self._home: dict[int, ir.Block] = {}
        self._carriers: dict[int, str] = {}
        self._carried: dict[tuple[int, str], ir.Register] = {}
        self._slot_names = {slot.name for slot in function.slots}
        # How many slots a hint has named.
        self._num_slots: dict[str, int] = {}
        self._entered: set[str] = set()
        self._num_blocks = 0
        self._from_integers: set[int] = set()
        self._homes: dict[int, tuple[Home, str]] = {}
        self.enter(self.new_block("entry"))

    @property
    def block(self) -> ir.Block | None:
        """Where instructions go; None behind a jump."""
        return self._block

    def new_slot(self, hint: str, kind: ir.Type, num_words: int = 0) -> str:
        """Add a slot; with `num_words` one in memory."""
        count = self._num_slots.get(hint, 0)
        name = f"{hint}.{count}" if count else hint
        while name in self._slot_names:
            count += 1
            name = f"{hint}.{count}"
        self._num_slots[hint] = count + 1
        self._slot_names.add(name)
        self.function.slots.append(ir.Slot(name, kind, num_words))
        return name

    def new_block(self, hint: str) -> ir.Block:
        """Make a block that no control reaches until it is jumped to and entered."""
        self._num_blocks += 1
        return ir.Block(f"{hint}{self._num_blocks}")

    def enter(self, block: ir.Block) -> None:
        """Go on in `block`."""
        if block.label not in self._entered:
            self._entered.add(block.label)
            self.function.blocks.append(block)
        self._block = block

    def leave(self) -> ir.Block | None:
        """Stop emitting; the block is still open for whoever enters it again."""
        block, self._block = self._block, None
        return block

    def forget(self, first: ir.Block) -> None:
        """Throw away `first` and every block entered after it."""
        while self.function.blocks.pop() is not first:
            pass
        self._block = None

    def emit(
        self,
        op: str,
        args: tuple[ir.Value, ...] = (),
        kind: ir.Type = ir.Type.VOID,
        names: tuple[str, ...] = (),
    ) -> ir.Register:
        """Append one instruction; the register is of no use when `kind` is VOID."""
        block = self._block
        if block is None:
            return ir.Register(-1, kind)
        used = tuple(map(self._use, args))
        number = len(self._home)
        result = -1 if kind is ir.Type.VOID else number
        if result >= 0:
            self._home[number] = block
        if kind is ir.Type.PTR:
            if op == "bitcast":
                self._from_integers.add(number)
            elif op in _HOMES:
                self._homes[number] = _HOMES[op], names[0]
        block.instructions.append(ir.Instruction(op, used, result, kind, names, self.place))
        if OPERATIONS[op].is_terminator:
            self._block = None
        return ir.Register(number, kind)

    def slot_of(self, number: int) -> tuple[Home, str]:
        """What memory at the address that a value holds is to a slot, and the slot."""
        return self._homes.get(number, (Home.NOWHERE, ""))

    def is_from_integer(self, pointer: ir.Value) -> bool:
        """Whether a pointer was made of an integer that only run time knows."""
        return isinstance(pointer, ir.Register) and pointer.number in self._from_integers

    def note_from_integer(self, pointer: ir.Value) -> None:
        """A pointer may stand for what was made of an integer."""
        if isinstance(pointer, ir.Register):
            self._from_integers.add(pointer.number)

    def jump(self, target: ir.Block) -> None:
        """End the block with a jump."""
        self.emit("jump", names=(target.label,))

    def close_loop(self, head: ir.Block) -> None:
        """Jump back to the head of a loop."""
        if self._block is not None:
            self._block.is_loop_end = True
        self.jump(head)

    def branch(self, condition: ir.Value, then: ir.Block, otherwise: ir.Block) -> None:
        """End the block with a choice."""
        self.emit("branch", (condition,), names=(then.label, otherwise.label))

    def _use(self, value: ir.Value) -> ir.Value:
        """A register of another block comes out of a slot that its own block sets."""
        here = self._block
        if not isinstance(value, ir.Register) or here is None:
            return value
        home = self._home[value.number]
        if home is here:
            return value
        carried = self._carried.get((value.number, here.label))
        if carried is None:
            slot = self._carriers.get(value.number) or self._carry(value, home)
            carried = self.emit("get", (), value.type, (slot,))
            self._carried[value.number, here.label] = carried
        return carried

    def _carry(self, value: ir.Register, home: ir.Block) -> str:
        slot = self.new_slot("carried", value.type)
        self._carriers[value.number] = slot
        at = next(i for i, one in enumerate(home.instructions) if one.result == value.number)
        setting = ir.Instruction("set", (value,), names=(slot,), place=self.place)
        home.instructions.insert(at + 1, setting)
        return slot
