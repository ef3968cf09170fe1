"""The text form of the intermediate representation: `render` and `parse` are inverse.

::

    module "pe_program.csl" stack 40 memory 24576
    place "pe_program.csl" 12 3 "main" to 12 17
    global @sum 16 2 = 0 0
    entry &main
    fn &main($n: i16) f32 {
      slot $i: i16
      slot $buffer: 3 words
    head:
      %0 = get[$n] i16 !0
      %1 = vector[fmovs, async] bool @sum, 5:f32
    body: loop_end
      jump[head]
    }
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    FunctionName,
    Global,
    Instruction,
    Module,
    Register,
    Resource,
    Slot,
    Type,
    Value,
)
from openwafer.sdk.program.debug_info import Place
from openwafer.source import SourceText, Span

_PLAIN: Final = re.compile(r"[A-Za-z_][\w.]*\Z")
_LOOP_END: Final = "loop_end"
_STEPPED: Final = "stepped"
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_][\w.]*)|(?P<number>-?\d+)|(?P<mark>[%@&$!=:,+(){}\[\]]))"""
)


def render(module: Module) -> str:
    """Return the text of a module; ends with a newline."""
    lines = [
        f"module {json.dumps(module.name)} stack {module.stack_base} memory {module.memory_words}"
    ]
    lines += (f"place {_render_place(place)}" for place in module.places)
    lines += map(_render_global, module.globals)
    lines += (f"entry &{_name(entry)}" for entry in module.entries)
    lines += map(render_function, module.functions.values())
    return "\n".join(lines) + "\n"


def render_function(function: Function) -> str:
    """Return the text of one function, without the newline at its end."""
    return function.once(render_function, lambda one: "\n".join(_render_function(one)))


def _name(name: str) -> str:
    return name if _PLAIN.match(name) else json.dumps(name)


def _render_place(place: Place) -> str:
    text = f"{json.dumps(place.file)} {place.line} {place.column} {json.dumps(place.function)}"
    end = f" to {place.end_line} {place.end_column}" if place.end_line else ""
    call = f" inlined {json.dumps(place.inlined)} at {place.call}" if place.inlined else ""
    return text + end + call


def _render_global(variable: Global) -> str:
    kind = "global" if variable.is_mutable else "constant"
    text = f"{kind} @{_name(variable.name)} {variable.address} {variable.num_words}"
    return " ".join([text, "=", *map(str, variable.initial)]) if variable.initial else text


def _render_function(function: Function) -> Iterator[str]:
    parameters = ", ".join(f"${_name(slot.name)}: {slot.type}" for slot in function.parameters)
    yield f"fn &{_name(function.name)}({parameters}) {function.return_type} {{"
    for slot in function.slots[function.num_parameters :]:
        extent = f"{slot.num_words} words" if slot.is_memory else slot.type
        yield f"  slot ${_name(slot.name)}: {extent}"
    for block in function.blocks:
        yield _render_label(block)
        yield from (f"  {_render_instruction(instruction)}" for instruction in block.instructions)
    yield "}"


def _render_label(block: Block) -> str:
    marks = (_LOOP_END, block.is_loop_end), (_STEPPED, block.is_stepped)
    return " ".join([f"{_name(block.label)}:", *(mark for mark, is_set in marks if is_set)])


def _render_instruction(instruction: Instruction) -> str:
    result = f"%{instruction.result} = " if instruction.result >= 0 else ""
    names = f"[{', '.join(map(_name, instruction.names))}]" if instruction.names else ""
    kind = f" {instruction.type}" if instruction.type is not Type.VOID else ""
    args = " " + ", ".join(map(_render_value, instruction.args)) if instruction.args else ""
    return f"{result}{instruction.op}{names}{kind}{args} !{instruction.place}"


def _render_value(value: Value) -> str:
    match value:
        case Register(number):
            return f"%{number}"
        case Constant(tuple() as words, kind):
            return f"{kind}({', '.join(map(str, words))})"
        case Constant(number, kind):
            return f"{number}:{kind}"
        case Address(symbol, offset):
            return f"@{_name(symbol)}" + (f"+{offset}" if offset else "")
        case FunctionName(name):
            return f"&{_name(name)}"
        case Resource(kind, number):
            return f"{kind}({number})"


def parse(text: str, name: str = "module.ir") -> Module:
    """Return the module that a text describes.

    Raises:
        OpenwaferError: ``ir-syntax``, with the place.
    """
    return _Reader(SourceText(name, text)).module()


class _Reader:
    """Reads tokens one after the other."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._tokens = list(_scan(source))
        self._next = 0
        self._types: dict[int, Type] = {}

    def module(self) -> Module:
        self._expect("module")
        name = self._text()
        self._expect("stack")
        stack_base = self._number()
        self._expect("memory")
        module = Module(name, stack_base, self._number())
        while not self._is_at_end():
            self._declaration(module)
        return module

    def _declaration(self, module: Module) -> None:
        word = self._take("word")
        match word:
            case "place":
                module.places.append(self._place())
            case "global" | "constant":
                module.globals.append(self._global(is_mutable=word == "global"))
            case "entry":
                self._expect("&")
                module.entries.append(self._name())
            case "fn":
                function = self._function()
                module.functions[function.name] = function
            case _:
                raise self._error(f"a declaration begins with '{word}'")

    def _place(self) -> Place:
        place = Place(self._text(), self._number(), self._number(), self._text())
        if self._accept("to"):
            place = replace(place, end_line=self._number(), end_column=self._number())
        if self._accept("inlined"):
            inlined = self._text()
            self._expect("at")
            place = replace(place, inlined=inlined, call=self._number())
        return place

    def _global(self, *, is_mutable: bool) -> Global:
        self._expect("@")
        name, address, num_words = self._name(), self._number(), self._number()
        initial = []
        if self._accept("="):
            while self._kind() == "number":
                initial.append(self._number())
        return Global(name, address, num_words, tuple(initial), is_mutable)

    def _function(self) -> Function:
        self._types = {}
        self._expect("&")
        name = self._name()
        self._expect("(")
        slots = []
        while not self._accept(")"):
            slots.append(self._slot())
            self._accept(",")
        function = Function(name, len(slots), self._type(), slots)
        self._expect("{")
        while self._accept("slot"):
            slots.append(self._slot())
        while not self._accept("}"):
            function.blocks.append(self._block())
        return function

    def _slot(self) -> Slot:
        self._expect("$")
        name = self._name()
        self._expect(":")
        if self._kind() == "number":
            num_words = self._number()
            self._expect("words")
            return Slot(name, Type.VOID, num_words)
        return Slot(name, self._type())

    def _block(self) -> Block:
        label = self._name()
        self._expect(":")
        is_loop_end = self._accept(_LOOP_END)
        block = Block(label, is_loop_end=is_loop_end, is_stepped=self._accept(_STEPPED))
        while not (self._peek() == "}" or self._peek(1) == ":"):
            block.instructions.append(self._instruction())
        return block

    def _instruction(self) -> Instruction:
        result = -1
        if self._accept("%"):
            result = self._number()
            self._expect("=")
        op = self._take("word")
        names = []
        if self._accept("["):
            while not self._accept("]"):
                names.append(self._name())
                self._accept(",")
        kind = Type.VOID
        if self._kind() == "word" and self._peek(1) != "(":
            kind = self._type()
        args = []
        while not self._accept("!"):
            args.append(self._value())
            self._accept(",")
        place = self._number()
        if result >= 0:
            self._types[result] = kind
        return Instruction(op, tuple(args), result, kind, tuple(names), place)

    def _value(self) -> Value:
        if self._kind() == "number":
            number = self._number()
            self._expect(":")
            return Constant(number, self._type())
        if self._accept("%"):
            number = self._number()
            if number not in self._types:
                raise self._error(f"%{number} is used before its definition")
            return Register(number, self._types[number])
        if self._accept("@"):
            name = self._name()
            return Address(name, self._number() if self._accept("+") else 0)
        if self._accept("&"):
            return FunctionName(self._name())
        word = self._take("word")
        numbers = self._numbers()
        if word in ("dsr", "fifo"):
            return Resource(word, numbers[0])
        return Constant(numbers, Type(word))

    def _numbers(self) -> tuple[int, ...]:
        self._expect("(")
        numbers = []
        while not self._accept(")"):
            numbers.append(self._number())
            self._accept(",")
        return tuple(numbers)

    def _is_at_end(self) -> bool:
        return self._next == len(self._tokens)

    def _peek(self, ahead: int = 0) -> str:
        index = self._next + ahead
        return self._tokens[index][1] if index < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._next][0] if not self._is_at_end() else "end"

    def _accept(self, text: str) -> bool:
        found = self._peek() == text
        self._next += found
        return found

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._error(f"expected '{text}', found '{self._peek() or 'the end'}'")

    def _take(self, kind: str) -> str:
        if self._kind() != kind:
            raise self._error(f"expected a {kind}, found '{self._peek() or 'the end'}'")
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _number(self) -> int:
        return int(self._take("number"))

    def _text(self) -> str:
        return str(json.loads(self._take("text")))

    def _name(self) -> str:
        if self._kind() == "text":
            return self._text()
        return self._take("number" if self._kind() == "number" else "word")

    def _type(self) -> Type:
        word = self._take("word")
        if word not in Type.__members__.values():
            raise self._error(f"'{word}' is no type")
        return Type(word)

    def _error(self, message: str) -> OpenwaferError:
        index = min(self._next, len(self._tokens) - 1)
        start = self._tokens[index][2] if self._tokens else 0
        length = len(self._tokens[index][1]) if self._tokens else 0
        return error("ir-syntax", message, span=Span(self._source, start, start + length))


def _scan(source: SourceText) -> Iterator[tuple[str, str, int]]:
    text, position, end = source.text, 0, len(source.text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise error(
                "ir-syntax",
                f"no token begins with '{text[start]}'",
                span=Span(source, start, start + 1),
            )
        position = match.end()
        kind = str(match.lastgroup)
        yield kind, match[kind], match.start(kind)
