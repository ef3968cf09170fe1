"""Random functions of numbers that pass the type checks and end, drawn so that they shrink."""

from collections.abc import Iterator
from itertools import count
from random import Random

from openwafer.sdk.csl.types import NAMED_TYPES, Int

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
KINDS = (*INTEGERS, "f16", "f32")
_NUM_VARIABLES = 5
_EXTREMES = (0.0, -0.0, 1.0, -1.5, 0.1, 65504.0, 6e-8, 1e-40, 3.4e38, -2.5e9)
_DEPTH = 3
_HELPER = "helper"


def literal(random: Random, kind: str) -> str:
    """A value of a type, often at one of its ends."""
    named = NAMED_TYPES[kind]
    if not isinstance(named, Int):
        value = random.choice((*_EXTREMES, random.uniform(-100, 100)))
        return f"@as({kind}, {value!r})"
    ends = (named.lowest, named.highest, 0, 1, named.highest - 1)
    number = random.choice((*ends, random.randint(named.lowest, named.highest)))
    return f"@as({kind}, {number})"


def _count(depth: int, count: int) -> int:
    """Iterations of a loop: the outermost ones have so many that the compiler notes their paths."""
    return 60 if depth == _DEPTH else count


class TypedFunction:
    """A function `f` of three numbers with a helper, and how it is called.

    Attributes:
        text: of both functions.
        kinds: types of the parameters.
        result: type of the result.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._numbers: Iterator[int] = count()
        self.kinds = tuple(random.choice(KINDS) for _ in range(3))
        self.result = random.choice(KINDS)
        self._helper_kind = random.choice(KINDS)
        self._names = {f"p{k}": kind for k, kind in enumerate(self.kinds)}
        self._has_helper = False
        helper = self._write_helper()
        self._has_helper = True
        self.text = helper + self._write_main()

    def _write_helper(self) -> str:
        names, self._names = self._names, {"p0": self._helper_kind}
        body = f"return {self._value(self._helper_kind, 3)};"
        text = f"fn {_HELPER}(p0: {self._helper_kind}) {self._helper_kind} {{ {body} }}\n"
        self._names = names
        return text

    def _write_main(self) -> str:
        lines = []
        for number in range(_NUM_VARIABLES):
            kind = self._random.choice(KINDS)
            lines.append(f"var v{number}: {kind} = {self._value(kind, 2)};")
            self._names[f"v{number}"] = kind
        kind = self._random.choice(KINDS)
        lines.append(f"var list = @constants([4]{kind}, {self._value(kind, 1)});")
        self._names["list[@as(u16, v0_place)]"] = kind
        lines.append("const v0_place: u16 = @as(u16, p0 != p0) + 1;")
        lines += [self._statement(_DEPTH) for _ in range(self._random.randrange(2, 6))]
        lines.append(f"return {self._value(self.result, 3)};")
        given = ", ".join(f"p{k}: {kind}" for k, kind in enumerate(self.kinds))
        return f"fn f({given}) {self.result} {{\n" + "\n".join(lines) + "\n}\n"

    def _target(self) -> tuple[str, str]:
        name = self._random.choice([name for name in self._names if name[0] != "p"])
        return name, self._names[name]

    def _statement(self, depth: int) -> str:
        match self._random.randrange(6) if depth else 0:
            case 0 | 1:
                name, kind = self._target()
                return f"{name} = {self._value(kind, 3)};"
            case 2:
                condition, inner = self._condition(2), self._statement(depth - 1)
                return f"if ({condition}) {{ {inner} }} else {{ {self._statement(depth - 1)} }}"
            case 3:
                counter = f"n{next(self._numbers)}"
                step = f"while ({counter} < {_count(depth, 4)}) : ({counter} += 1)"
                return f"var {counter}: u16 = 0; {step} {{ {self._loop_body(depth)} }}"
            case 4:
                element = f"e{next(self._numbers)}"
                body = self._loop_body(depth)
                return f"for (@range(i16, {_count(depth, 5)})) |{element}| {{ {body} }}"
            case _:
                name, kind = self._target()
                return f"{name} = {self._switch(kind)};"

    def _loop_body(self, depth: int) -> str:
        leave = self._random.choice(("", f"if ({self._condition(1)}) break;", "", "continue;"))
        return f"{self._statement(depth - 1)} {leave}"

    def _switch(self, kind: str) -> str:
        of = self._random.choice([k for k in self._names.values() if k in INTEGERS] or ["u8"])
        cases = f"0 => {self._value(kind, 1)}, 1...5 => {self._value(kind, 1)}"
        return f"switch ({self._value(of, 2)}) {{ {cases}, else => {self._value(kind, 1)} }}"

    def _condition(self, depth: int) -> str:
        kind = self._random.choice(KINDS)
        operator = self._random.choice(("==", "!=", "<", "<=", ">", ">="))
        found = f"({self._value(kind, depth)} {operator} {self._value(kind, depth)})"
        joined = self._random.choice(("", "", "and", "or"))
        return f"({found} {joined} !{self._condition(depth - 1)})" if joined and depth else found

    def _value(self, kind: str, depth: int) -> str:
        names = [name for name, own in self._names.items() if own == kind]
        choice = self._random.randrange(8) if depth else self._random.randrange(2)
        match choice:
            case 0:
                return literal(self._random, kind)
            case 1 | 2 if names:
                return self._random.choice(names)
            case 3:
                other = self._random.choice(KINDS)
                return f"@as({kind}, {self._value(other, depth - 1)})"
            case 4 if self._has_helper and kind == self._helper_kind:
                return f"{_HELPER}({self._value(kind, depth - 1)})"
            case 5 if depth:
                branches = self._value(kind, depth - 1), self._value(kind, depth - 1)
                choice_of = f"if ({self._condition(depth - 1)}) {branches[0]} else {branches[1]}"
                return f"@as({kind}, {choice_of})"
            case 6 if depth:
                operator = self._random.choice("-~" if kind in INTEGERS else "-")
                return f"({operator}{self._value(kind, depth - 1)})"
            case _:
                return self._operation(kind, depth) if depth else literal(self._random, kind)

    def _operation(self, kind: str, depth: int) -> str:
        operators = ("+", "-", "*", "&", "|", "^", "/", "%", "<<", ">>")
        operator = self._random.choice(operators if kind in INTEGERS else ("+", "-", "*", "/"))
        left, right = self._value(kind, depth - 1), self._value(kind, depth - 1)
        if operator in ("<<", ">>"):
            return f"({left} {operator} {self._random.randrange(70)})"
        if operator in ("/", "%") and kind in INTEGERS:
            # At compile time a division by zero is an error.
            right = f"({right} | 1)"
        return f"({left} {operator} {right})"
