"""Random modules that always end: calls go to later functions, loops count to a small number."""

from random import Random

from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    Global,
    Instruction,
    Module,
    Register,
    Slot,
    Type,
    Value,
)

_KINDS = (Type.I16, Type.U16, Type.I32, Type.U8, Type.F32, Type.I64, Type.F16)
_ONES = {Type.F32: 0x3F800000, Type.F16: 0x3C00}
"""The smallest number of a float type that is constant here."""
_VECTORS = {
    "add16": (1, 1, 1),
    "mov16": (1, 1),
    "mov32": (2, 2),
    "sub16": (1, 1, 1),
    "xor16": (1, 1, 1),
    "sll16": (1, 1, 1),
    "popcnt": (1, 1),
    "fnegh": (1, 1),
    "fabss": (2, 2),
    "fs2xp16": (1, 2),
    "xp162fs": (2, 1),
}
"""Operations without results that are no number: words of the destination, and of each source."""
_GLOBAL_WORDS = 64
_NUM_FUNCTIONS = 4
_MAX_DEPTH = 3
_MEMORY_WORDS = 4


def random_module(random: Random) -> Module:
    """A module with one entry, ``f0``, of one i16 parameter."""
    module = Module("generated", 20000, 24576, [Global("g", 16, _GLOBAL_WORDS)])
    for number in range(_NUM_FUNCTIONS):
        module.functions[f"f{number}"] = _Builder(random, number).function
    module.entries.append("f0")
    return module


class _Builder:
    """Writes one function."""

    def __init__(self, random: Random, number: int) -> None:
        self._random = random
        self._number = number
        self._next_value = 0
        self._next_label = 0
        self._slots = [Slot(f"v{index}", kind) for index, kind in enumerate(_KINDS)]
        slots = [Slot("n", Type.I16), *self._slots, Slot("m", Type.VOID, _MEMORY_WORDS)]
        self.function = Function(f"f{number}", 1, Type.I16, slots)
        self._begin("head")
        self._do("store", self._address(), Constant(0, Type.I64))
        self._statements(_MAX_DEPTH)
        self._do("return", self._expression(Type.I16, 2))

    def _begin(self, label: str) -> None:
        self.function.blocks.append(Block(label))

    def _label(self) -> str:
        self._next_label += 1
        return f"b{self._next_label}"

    def _do(self, op: str, *args: Value, names: tuple[str, ...] = ()) -> None:
        place = self._random.randrange(5)
        block = self.function.blocks[-1]
        block.instructions.append(Instruction(op, args, names=names, place=place))

    def _value(self, op: str, kind: Type, *args: Value, names: tuple[str, ...] = ()) -> Register:
        self._next_value += 1
        instruction = Instruction(op, args, self._next_value, kind, names)
        self.function.blocks[-1].instructions.append(instruction)
        return Register(self._next_value, kind)

    def _address(self) -> Value:
        if self._random.random() > 0.7:
            return self._value("slot_address", Type.PTR, names=("m",))
        return Address("g", 2 * self._random.randrange(_GLOBAL_WORDS - 4))

    def _constant(self, kind: Type) -> Constant:
        value = self._random.choice((0, 1, 2, 7, 100))
        return Constant(_ONES[kind] + (value << 4) if kind in _ONES else value, kind)

    def _expression(self, kind: Type, depth: int) -> Value:
        choice = self._random.randrange(6) if depth else self._random.randrange(3)
        match choice:
            case 0:
                return self._constant(kind)
            case 1 | 2:
                name = self._random.choice([slot.name for slot in self._slots if slot.type is kind])
                return self._value("get", kind, names=(name,))
            case 3:
                source = self._random.choice(_KINDS)
                return self._value("cast", kind, self._expression(source, depth - 1))
            case _:
                ops = ("add", "sub") if kind in _ONES else ("add", "sub", "mul", "xor", "div")
                sides = [self._expression(kind, depth - 1) for _ in range(2)]
                return self._value(self._random.choice(ops), kind, *sides)

    def _statements(self, depth: int) -> None:
        writers = [self._assign, self._remember, self._request, self._vector, self._call]
        for _ in range(self._random.randrange(1, 4)):
            if depth and self._random.random() > 0.6:
                self._random.choice((self._loop, self._choice))(depth - 1)
            else:
                self._random.choice(writers)()

    def _assign(self) -> None:
        slot = self._random.choice(self._slots)
        self._do("set", self._expression(slot.type, 3), names=(slot.name,))

    def _remember(self) -> None:
        kind = self._random.choice(_KINDS)
        value = self._expression(kind, 2)
        address = self._address()
        if kind is Type.U8 and self._random.random() > 0.5:
            address = self._value("byte_add", Type.PTR, address, Constant(1, Type.I16))
        self._do("store", address, value)

    def _request(self) -> None:
        if self._random.random() > 0.5:
            word = self._value("read_register", Type.U16, self._expression(Type.U16, 1))
            kept = self._expression(Type.I32, 1)
            self._do("write_register", word, kept)
        else:
            descriptor = Constant((3, 5, 4, 0, 2, 1, 0, 0), Type.DSD)
            names = ("mov16", "fabric", "async")
            self._do("vector", descriptor, self._expression(Type.U16, 1), names=names)

    def _vector(self) -> None:
        name = self._random.choice(tuple(_VECTORS))
        target, *sources = _VECTORS[name]
        operands = [self._line(words) for words in (target, *sources)]
        if len(sources) > 1 and self._random.random() > 0.5:
            operands[-1] = self._expression(Type.U16, 1)
        if self._random.random() > 0.8:
            operands[0] = self._address()
        self._do("vector", *operands, names=(name,))

    def _line(self, words: int) -> Value:
        """A descriptor of five elements, somewhere in the global."""
        place, step = 20 + self._random.randrange(20), self._random.choice((1, 2, 3, 0, -1))
        return Constant((1, place, 5, 0, step * words & 0xFFFF, words, 0, 0), Type.DSD)

    def _call(self) -> None:
        later = range(self._number + 1, _NUM_FUNCTIONS)
        if later:
            name = f"f{self._random.choice(later)}"
            kept, argument = self._expression(Type.I16, 1), self._expression(Type.I16, 1)
            result = self._value("call", Type.I16, argument, names=(name,))
            total = self._value("add", Type.I16, kept, result)
            self._do("set", total, names=("v0",))

    def _choice(self, depth: int) -> None:
        kind = self._random.choice(_KINDS)
        sides = [self._expression(kind, 1) for _ in range(2)]
        condition = self._value(self._random.choice(("lt", "eq", "ge")), Type.BOOL, *sides)
        then, otherwise, end = self._label(), self._label(), self._label()
        self._do("branch", condition, names=(then, otherwise))
        for label in (then, otherwise):
            self._begin(label)
            self._statements(depth)
            self._do("jump", names=(end,))
        self._begin(end)

    def _loop(self, depth: int) -> None:
        counter = f"i{self._next_label}"
        self.function.slots.append(Slot(counter, Type.U16))
        test, body, end = self._label(), self._label(), self._label()
        self._do("set", Constant(0, Type.U16), names=(counter,))
        self._do("jump", names=(test,))
        self._begin(test)
        count = self._value("get", Type.U16, names=(counter,))
        self._do(
            "branch",
            self._value("lt", Type.BOOL, count, Constant(3, Type.U16)),
            names=(body, end),
        )
        self._begin(body)
        self._statements(depth)
        count = self._value("get", Type.U16, names=(counter,))
        more = self._value("add", Type.U16, count, Constant(1, Type.U16))
        self._do("set", more, names=(counter,))
        self._do("jump", names=(test,))
        self.function.blocks[-1].is_loop_end = True
        self._begin(end)
