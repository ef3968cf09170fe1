"""Structs of options as builtins take them, read field by field."""

from collections.abc import Mapping
from types import MappingProxyType

from openwafer.diagnostics import suggestion
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema import lvalues
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.values import Comptime, Loaded, Operand
from openwafer.source import Span


def elements(sema: Sema, operand: Operand, span: Span) -> list[Loaded]:
    """What an array or a tuple holds."""
    kind = operand.type
    if isinstance(kind, t.Struct):
        number = len(kind.fields)
    elif isinstance(kind, t.Array):
        number = kind.num_elements
    else:
        sema.fail("type-mismatch", f"expected an array or a tuple, got: '{kind}'", span)
    return [sema.load(lvalues.part(sema, operand, index), span) for index in range(number)]


def known_struct(fields: Mapping[str, Comptime]) -> Comptime:
    """An anonymous struct."""
    kind = t.Struct(tuple(t.Field(name, value.type) for name, value in fields.items()))
    return Comptime(kind, tuple(value.value for value in fields.values()))


class Options:
    """Fields of an option struct. Each is taken once; :meth:`close` reports what is left."""

    def __init__(
        self,
        sema: Sema,
        fields: Mapping[str, Loaded],
        span: Span,
        spans: Mapping[str, Span] = MappingProxyType({}),
        names: Mapping[str, Span] = MappingProxyType({}),
    ) -> None:
        self._sema = sema
        self._fields = dict(fields)
        self._known: list[str] = []
        self._spans = spans
        self._names = names
        self.span = span

    @classmethod
    def read(cls, sema: Sema, node: ast.Expression | None, span: Span) -> "Options":
        """The options that an expression gives; none where it was left out."""
        if node is None:
            return cls(sema, {}, span)
        inits = node.fields if isinstance(node, ast.StructInit) else ()
        spans = {init.name.text: init.value.span for init in inits}
        names = {init.name.text: init.name.span for init in inits}
        return cls(sema, sema.fields(sema.expression(node), node.span), node.span, spans, names)

    @classmethod
    def of(cls, sema: Sema, operand: Operand, span: Span) -> "Options":
        """The options in a struct."""
        return cls(sema, sema.fields(operand, span), span)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def operand(self, name: str) -> Loaded | None:
        """A field's value; None where the struct has no such field."""
        self._known.append(name)
        self.span = self._spans.get(name, self.span)
        return self._fields.pop(name, None)

    def needed(self, name: str) -> Loaded:
        """A field that must be there."""
        operand = self.operand(name)
        if operand is None:
            self._sema.fail("missing-field", f"the field '{name}' is missing", self.span)
        return operand

    def required(self, name: str) -> None:
        """Report a field that must be there and is not; it stays to be taken."""
        if name not in self._fields:
            self._sema.fail("missing-field", f"the field '{name}' is missing", self.span)

    def flag(self, name: str) -> bool:
        """A known bool, false where absent."""
        operand = self.operand(name)
        return operand is not None and self._known_bool(name, operand)

    def typed(self, name: str, kind: t.Type) -> Loaded | None:
        """A field as a value of a type."""
        operand = self.operand(name)
        return None if operand is None else self._sema.coerce(operand, kind, self.span)

    def number(self, name: str, default: int = 0) -> int:
        """A known integer."""
        operand = self.operand(name)
        if operand is None:
            return default
        if not isinstance(operand, Comptime) or not isinstance(operand.value, int):
            message = f"expected a known integer, got: '{operand.type}'"
            self._sema.fail("type-mismatch", message, self.span)
        return operand.value

    def choice(self, name: str, values: Mapping[str, int]) -> int | None:
        """`.{ .word = true }`: the number that the word stands for."""
        operand = self.operand(name)
        if operand is None:
            return None
        given = self._sema.fields(operand, self.span)
        words = [word for word, value in given.items() if self._known_bool(word, value)]
        if len(words) != 1 or words[0] not in values:
            expected = ", ".join(f".{word} = true" for word in values)
            message = f"'{name}' expects one of {expected}"
            self._sema.fail("wrong-field", message, self.span)
        return values[words[0]]

    def close(self) -> None:
        """Report fields that nobody took."""
        if self._fields:
            name = next(iter(self._fields))
            span = self._names.get(name, self.span)
            known = sorted(self._known)
            notes = (f"the fields are {', '.join(known)}",)
            help_text = suggestion(name, known)
            message = f"no field '{name}' here"
            self._sema.fail("unknown-field", message, span, notes=notes, help=help_text)

    def _known_bool(self, name: str, operand: Operand) -> bool:
        if not isinstance(operand, Comptime) or not isinstance(operand.value, bool):
            message = f"'{name}' expects a known bool, got: '{operand.type}'"
            self._sema.fail("type-mismatch", message, self.span)
        return operand.value
