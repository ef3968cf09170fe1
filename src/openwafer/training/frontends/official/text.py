"""Reads the text of a graph; what it may say is in docs/formats/cirh.md."""

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

from openwafer.diagnostics import error
from openwafer.source import SourceText, Span
from openwafer.training.frontends.official.graph import (
    BITS,
    Argument,
    Attribute,
    Dense,
    Graph,
    Operation,
    TensorType,
    verify,
)

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<type>tensor<[^<>]*>)
    |(?P<value>%[A-Za-z0-9_$.\-]+(?:[\#:][0-9]+)?)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<hex>0x[0-9A-Fa-f]+)
    |(?P<float>-?[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?)
    |(?P<integer>-?[0-9]+)
    |(?P<alias>\#[A-Za-z0-9_]+)
    |(?P<symbol>@[A-Za-z0-9_$.\-]+)
    |(?P<word>[A-Za-z_][A-Za-z0-9_.$]*)
    |(?P<sign>->|[(){}\[\]<>=,:])""",
    re.VERBOSE,
)
_BYTES: Final = re.compile(r'"0x(?:[0-9A-Fa-f]{2})*"')
# How the bits of a number are written where decimals do not say it: infinities and NaN.
_FLOATS: Final = {"f16": ("<H", "<e"), "f32": ("<I", "<f"), "f64": ("<Q", "<d")}
Read = TypeVar("Read")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int


def read_graph(text: str, name: str) -> Graph:
    """The graph of a text, verified; `name` says where it is from.

    Raises `cirh-syntax` where the text is not of the form, `cirh-type` for a type that is not a
    tensor of static shape and known format, `cirh-value` and `cirh-output` as :func:`verify`.
    """
    graph = _Reader(SourceText(name, text)).module()
    verify(graph)
    return graph


class _Reader:
    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._tokens = self._scan()
        self._next = next(self._tokens)

    def _scan(self) -> Iterator[_Token]:
        text, place = self._source.text, 0
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                self._refuse(place, place + 1, "a name, a number or a sign")
            kind = str(found.lastgroup)
            if kind != "space":
                yield _Token(kind, found[0], place)
            place = found.end()
        yield _Token("end", "", max(len(text) - 1, 0))

    def _refuse(self, start: int, end: int, wanted: str) -> NoReturn:
        raise error(
            "cirh-syntax",
            f"{self._source.text[start:end]!r} stands where {wanted} is expected",
            span=Span(self._source, start, end),
            help="this reads graphs of version 2.10.0 of the vendor's package",
        )

    def _refuse_next(self, wanted: str) -> NoReturn:
        self._refuse(self._next.start, self._next.start + len(self._next.text), wanted)

    def _take(self, kind: str, wanted: str) -> _Token:
        if self._next.kind != kind:
            self._refuse_next(wanted)
        token, self._next = self._next, next(self._tokens, self._next)
        return token

    def _takes(self, text: str) -> bool:
        """Whether this sign or word stands here; it is passed by then."""
        if self._next.text != text or self._next.kind == "string":
            return False
        self._next = next(self._tokens, self._next)
        return True

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            self._refuse_next(f"{text!r}")

    def _list_of(self, read: Callable[[], Read], end: str) -> list[Read]:
        found: list[Read] = []
        while not self._takes(end):
            if found:
                self._expect(",")
            found.append(read())
        return found

    def module(self) -> Graph:
        self._location_aliases()
        self._expect("module")
        self._expect("{")
        graph = self._function()
        self._expect("}")
        self._location()
        self._location_aliases()
        if self._next.kind != "end":
            self._refuse_next("the end: a graph is one function")
        return graph

    def _location_aliases(self) -> None:
        while self._next.kind == "alias":
            self._take("alias", "an alias")
            self._expect("=")
            self._location()

    def _location(self) -> None:
        """Pass by where a line comes from, which says nothing of what it computes."""
        if not self._takes("loc"):
            return
        self._expect("(")
        depth = 1
        while depth:
            if self._next.kind == "end":
                self._refuse_next("')'")
            depth += (self._next.text == "(") - (self._next.text == ")")
            self._next = next(self._tokens, self._next)

    def _function(self) -> Graph:
        self._expect("func")
        name = self._take("symbol", "the function's name").text[1:]
        self._expect("(")
        arguments = self._list_of(self._argument, ")")
        outputs = self._outputs() if self._takes("->") else {}
        if self._takes("attributes"):
            self._attributes()
        self._expect("{")
        types = {one.name: one.type for one in arguments}
        operations = []
        while not self._takes("return"):
            operations.append(self._operation())
            types.update(zip(operations[-1].results, operations[-1].result_types, strict=True))
        returned = self._values()
        if self._takes(":"):
            self._type()
            while self._takes(","):
                self._type()
        self._location()
        self._expect("}")
        self._location()
        return Graph(name, tuple(arguments), tuple(operations), returned, outputs, types)

    def _outputs(self) -> dict[str, int]:
        """The names of what closures read, with their places among the returned values."""
        self._expect("(")
        names = self._list_of(self._output_name, ")")
        return {name: place for place, name in enumerate(names) if isinstance(name, str)}

    def _output_name(self) -> object:
        self._type()
        return self._attributes().get("cs.output_name")

    def _argument(self) -> Argument:
        token = self._take("value", "an argument")
        self._expect(":")
        found = self._type()
        attributes = self._attributes()
        self._location()
        resource = attributes.get("tf.resource_name")
        output = attributes.get("tf.aliasing_output")
        input_name = attributes.get("cs.input_name")
        span = Span(self._source, token.start, token.start + len(token.text))
        is_resource, is_input = isinstance(resource, str), isinstance(input_name, str)
        if is_resource == is_input:
            raise error(
                "cirh-argument",
                f"argument {token.text} has to be a resource or an input, one of the two",
                span=span,
                help="give it tf.resource_name or cs.input_name",
            )
        return Argument(
            token.text,
            found,
            resource if isinstance(resource, str) else None,
            output if isinstance(output, int) else None,
            input_name if isinstance(input_name, str) else None,
            span,
        )

    def _operation(self) -> Operation:
        start = self._next.start
        results = self._results()
        self._expect("=")
        kind = self._take("word", "an operation").text
        attributes: dict[str, Attribute] = {}
        operands: tuple[str, ...] = ()
        if self._next.text == "dense":
            attributes["value"] = dense = self._dense()
            found: tuple[TensorType, ...] = (dense.type,)
            end = self._next.start
        else:
            operands = self._values()
            attributes.update(self._attributes())
            self._expect(":")
            end = self._next.start
            found = self._result_types()
        span = Span(self._source, start, max(end - 1, start + 1))
        self._location()
        if len(found) == 1:
            found *= len(results)
        if len(found) != len(results):
            self._refuse(span.start, span.end, f"{len(results)} types of results")
        return Operation(kind, operands, attributes, results, found, span)

    def _results(self) -> tuple[str, ...]:
        names: list[str] = []
        while True:
            text, _, number = self._take("value", "a result").text.partition(":")
            names += [f"{text}#{index}" for index in range(int(number))] if number else [text]
            if not self._takes(","):
                return tuple(names)

    def _values(self) -> tuple[str, ...]:
        names: list[str] = []
        while self._next.kind == "value":
            names.append(self._take("value", "a value").text)
            if not self._takes(","):
                break
        return tuple(names)

    def _result_types(self) -> tuple[TensorType, ...]:
        found = self._types()
        return self._types() if self._takes("->") else found

    def _types(self) -> tuple[TensorType, ...]:
        if not self._takes("("):
            return (self._type(),)
        return tuple(self._list_of(self._type, ")"))

    def _type(self) -> TensorType:
        token = self._take("type", "a type tensor<...>")
        *dims, dtype = token.text[len("tensor<") : -1].split("x")
        if dtype not in BITS or not all(dim.isdecimal() for dim in dims):
            raise error(
                "cirh-type",
                f"{token.text} is no type that this reads",
                span=Span(self._source, token.start, token.start + len(token.text)),
                help=f"shapes are static, and formats are {', '.join(BITS)}",
            )
        return TensorType(tuple(map(int, dims)), dtype)

    def _attributes(self) -> dict[str, Attribute]:
        if not self._takes("{"):
            return {}
        return dict(self._list_of(self._named_attribute, "}"))

    def _named_attribute(self) -> tuple[str, Attribute]:
        kind = "string" if self._next.kind == "string" else "word"
        name = self._take(kind, "an attribute's name").text.strip('"')
        return name, self._attribute() if self._takes("=") else True

    def _attribute(self) -> Attribute:
        match self._next:
            case _Token("integer"):
                return int(self._number())
            case _Token("float"):
                return float(self._number())
            case _Token("string"):
                return self._take("string", "a text").text[1:-1]
            case _Token("type"):
                return self._type()
            case _Token("word", "dense"):
                return self._dense()
            case _Token("word", "true" | "false"):
                return self._take("word", "true or false").text == "true"
            case _Token("sign", "{"):
                return self._attributes()
            case _Token("sign", "["):
                self._expect("[")
                return self._list_of(self._attribute, "]")
            case _:
                return self._refuse_next("an attribute's value")

    def _number(self) -> str:
        text = self._take(self._next.kind, "a number").text
        if self._takes(":"):
            self._take("word", "a format")
        return text

    def _dense(self) -> Dense:
        self._expect("dense")
        self._expect("<")
        start = self._next.start
        tokens = self._dense_tokens()
        self._expect(":")
        found = self._type()
        for token in tokens:
            if not _has_bits_of(token, found.dtype):
                end = token.start + len(token.text)
                self._refuse(token.start, end, f"a number of {BITS[found.dtype]} bits")
        values = tuple(value for token in tokens for value in _numbers(token, found.dtype))
        count = math.prod(found.shape)
        if len(values) not in (1, count):
            self._refuse(start, start + 1, f"one number or {count} numbers for {found}")
        return Dense(values, found)

    def _dense_tokens(self) -> list[_Token]:
        """The numbers up to the sign that ends them, without the signs of their lists."""
        found: list[_Token] = []
        while not self._takes(">"):
            match self._next:
                case _Token("integer" | "float" | "hex") | _Token("word", "true" | "false"):
                    found.append(self._next)
                case _Token("string", text) if _BYTES.fullmatch(text):
                    found.append(self._next)
                case _Token("sign", "[" | "]" | ","):
                    pass
                case _:
                    self._refuse_next("a number")
            self._next = next(self._tokens, self._next)
        return found


def _has_bits_of(token: _Token, dtype: str) -> bool:
    match token.kind:
        case "hex":
            return int(token.text, 16) >> BITS[dtype] == 0
        case "string":
            return len(bytes.fromhex(token.text[3:-1])) * 8 % BITS[dtype] == 0
        case _:
            return True


def _numbers(token: _Token, dtype: str) -> tuple[int | float | bool, ...]:
    match token.kind:
        case "word":
            return (token.text == "true",)
        case "integer":
            return (int(token.text),)
        case "float":
            return (float(token.text),)
        case "hex":
            return (_of_bits(int(token.text, 16), dtype),)
        case _:
            raw = bytes.fromhex(token.text[3:-1])
            size = BITS[dtype] // 8
            parts = (raw[place : place + size] for place in range(0, len(raw), size))
            return tuple(_of_bits(int.from_bytes(part, "little"), dtype) for part in parts)


def _of_bits(bits: int, dtype: str) -> int | float:
    if dtype == "bf16":
        bits, dtype = bits << 16, "f32"
    if dtype not in _FLOATS:
        signed = bits - (1 << BITS[dtype]) if bits >> (BITS[dtype] - 1) else bits
        return bits if dtype.startswith("ui") else signed
    as_integer, as_float = _FLOATS[dtype]
    return float(struct.unpack(as_float, struct.pack(as_integer, bits))[0])
