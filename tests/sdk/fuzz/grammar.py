"""Programs by the rules of the grammar, with names and types thrown together."""

from collections.abc import Callable
from random import Random

from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema import image  # noqa: F401  (registers the builtins)
from openwafer.sdk.csl.sema.sema import BUILTINS

_NAMES = ("a", "b", "c", "f", "g", "s", "t", "x", "y")
_BUILTINS = tuple(f"@{name}" for name in sorted(BUILTINS))
_TYPES = tuple(sorted(types.NAMED_TYPES))
_SCALARS = ("i8", "u8", "i16", "u16", "i32", "u32", "f16", "f32", "bool")
_BINARY = ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", ">=", "and", "or")
_ASSIGN = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
_NUMBERS = ("0", "1", "2", "3", "7", "16", "255", "65536", "1.5", "true", "false", "0x7FFF", "-1")
_FIELDS = (
    *("async", "activate", "unblock", "extent", "tensor_access", "base_address", "stride", "a"),
    *("fabric_color", "input_queue", "output_queue", "index", "b", "pos1", "routes", "tx"),
)
_DEPTH = 4


def random_program(random: Random) -> str:
    """A file of a few declarations; many are refused for their types, and some are right."""
    writer = _Writer(random)
    return "\n".join(writer.declaration() for _ in range(random.randrange(1, 9)))


class _Writer:
    """Writes by chance; `depth` bounds what stands inside each other."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def _one(self, depth: int, *choices: Callable[[int], str]) -> str:
        return self._random.choice(choices)(depth - 1)

    def _any(self, *words: str) -> str:
        return self._random.choice(words)

    def _list(self, item: Callable[[], str], most: int = 3, between: str = ", ") -> str:
        return between.join(item() for _ in range(self._random.randrange(most + 1)))

    def name(self, _depth: int = 0) -> str:
        return self._any(*_NAMES)

    def declaration(self) -> str:
        kind = self._random.randrange(8)
        name, depth = self.name(), _DEPTH
        match kind:
            case 0 | 1:
                storage = self._any(
                    "const", "var", "param", "export var", "comptime var", "extern var"
                )
                given = f": {self.type(depth)}" if self._random.random() < 0.6 else ""
                value = f" = {self.expression(depth)}" if self._random.random() < 0.8 else ""
                return f"{storage} {name}{given}{value};"
            case 2 | 3 | 4:
                head = self._any("fn", "fn", "fn", "task", "inline fn", "export fn")
                given = self._list(lambda: f"{self.name()}: {self.type(2)}")
                result = self._any("void", "void", self.type(2))
                return f"{head} {name}({given}) {result} {self.block(depth)}"
            case 5:
                return f"comptime {self.block(depth)}"
            case 6:
                kind_of = self._any("struct", "enum(u16)", "packed struct")
                between = ": i16" if "struct" in kind_of else ""
                fields = self._list(lambda: self.name() + between, 4)
                return f"const {name} = {kind_of} {{ {fields} }};"
            case _:
                size = f"@set_rectangle({self.expression(1)}, 1);"
                return f'layout {{ {size} {self.statement(2)} @set_tile_code(0, 0, "pe.csl"); }}'

    def type(self, depth: int) -> str:
        if depth <= 0 or self._random.random() < 0.6:
            return self._any(*_SCALARS, *_TYPES, self.name())
        return self._one(
            depth,
            lambda d: f"[{self.expression(d - 1)}]{self.type(d)}",
            lambda d: self._any("*", "[*]", "*const ", "[*]const ") + self.type(d),
            lambda d: f"fn({self._list(lambda: self.type(d))}) {self.type(d)}",
            lambda d: f"@type_of({self.expression(d)})",
        )

    def expression(self, depth: int) -> str:
        if depth <= 0 or self._random.random() < 0.25:
            return self._any(*_NUMBERS, *_NAMES, *_SCALARS, '"a"', ".{}", "undefined", "NORTH")
        return self._one(
            depth,
            lambda d: f"({self.expression(d)} {self._any(*_BINARY)} {self.expression(d)})",
            lambda d: self._any("-", "!", "~", "&") + self.expression(d),
            lambda d: f"{self.name()}({self._arguments(d)})",
            lambda d: f"{self._any(*_BUILTINS)}({self._arguments(d)})",
            lambda d: f"@as({self.type(d)}, {self.expression(d)})",
            lambda d: f"{self.expression(d)}[{self.expression(d)}]",
            lambda d: f"{self.expression(d)}.{self._any('*', *_NAMES, 'len')}",
            lambda d: f"[{self._list(lambda: self.expression(d))}]",
            self.struct,
            lambda d: f"if ({self.expression(d)}) {self.expression(d)} else {self.expression(d)}",
            self._switch,
        )

    def struct(self, depth: int) -> str:
        fields = self._list(lambda: f".{self._any(*_FIELDS)} = {self.expression(depth)}")
        return f".{{ {fields} }}"

    def _arguments(self, depth: int) -> str:
        given = self._list(lambda: self._any(self.expression(depth), self.type(depth)))
        options = [self.struct(depth)] if self._random.random() < 0.2 else []
        return ", ".join([part for part in (given, *options) if part])

    def _switch(self, depth: int) -> str:
        cases = self._list(lambda: f"{self.expression(0)} => {self.expression(depth)}, ", 3, "")
        return f"switch ({self.expression(depth)}) {{ {cases}else => {self.expression(depth)} }}"

    def block(self, depth: int) -> str:
        return f"{{ {self._list(lambda: self.statement(depth), 4, ' ')} }}"

    def statement(self, depth: int) -> str:
        if depth <= 0 or self._random.random() < 0.3:
            return f"{self.expression(1)};"
        return self._one(
            depth,
            lambda d: f"{self._any('const', 'var')} {self.name()} = {self.expression(d)};",
            lambda d: f"var {self.name()}: {self.type(1)} = {self.expression(d)};",
            lambda d: f"{self.name()} {self._any(*_ASSIGN)} {self.expression(d)};",
            lambda d: f"{self._any(*_BUILTINS)}({self._arguments(d)});",
            lambda d: f"if ({self.expression(d)}) {self.block(d)} else {self.block(d)}",
            lambda d: f"{self._any('', 'inline ')}while ({self.expression(d)}) {self.block(d)}",
            self._for,
            lambda d: self._any("return;", "break;", "continue;", f"return {self.expression(d)};"),
            lambda d: f"comptime {self.block(d)}",
            self.block,
        )

    def _for(self, depth: int) -> str:
        over = self._any(f"@range({self._any(*_SCALARS)}, {self.expression(0)})", self.name())
        head = self._any("for", "inline for")
        return f"{head} ({over}) |{self.name()}| {self.block(depth)}"
