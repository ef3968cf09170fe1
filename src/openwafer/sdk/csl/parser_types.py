"""The grammar of the types that have a form of their own, and of inline assembly."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.parser_cursor import CLOSERS, Cursor
from openwafer.sdk.csl.tokens import TokenKind

Item = TypeVar("Item")

_OPERAND = 'an operand is written: [name] "=r" (value)'


class TypeParser(Cursor, ABC):
    """Parses forms of types; the expressions inside are left to the class that knows them."""

    @abstractmethod
    def expression(self) -> ast.Expression:
        """Parse a value or type, as far as it reaches."""

    @abstractmethod
    def type_expression(self) -> ast.Expression:
        """Parse an expression that a block may follow: no operators, no literal in braces."""

    @abstractmethod
    def literal(self) -> ast.Literal:
        """Parse a number, character or string."""

    def pointer_or_array_type(self) -> ast.Expression | None:
        """Parse `*T`, `[*]T` or `[N]T`; None where none of them starts."""
        if self.token.text == "*":
            return self._pointer_type(self.advance().start, is_many=False)
        return self._bracket_type() if self.token.text == "[" else None

    def _pointer_type(self, start: int, *, is_many: bool) -> ast.PointerType:
        is_const = self.accept("const")
        element = self.type_expression()
        return ast.PointerType(is_many, is_const, element, span=self.since(start))

    def expressions(self, inside: str) -> tuple[ast.Expression, ...]:
        """Parse one or more expressions between the bracket that is here and its closer."""
        opener = self.advance()
        if self.token.text == CLOSERS[opener.text]:
            message = f"expected an expression in {inside}, found {self.found()}"
            raise self.failure("csl-expected-expression", message)
        return self.items(opener, inside, self.expression)

    def _bracket_type(self) -> ast.Expression:
        opener = self.token
        if self.ahead(1).text == "*" and self.ahead(2).text == "]":
            for _ in "[*]":
                self.advance()
            return self._pointer_type(opener.start, is_many=True)
        dims = self.expressions("the size of an array")
        if self.token.text in {";", ",", ")", "}", "="}:
            message = f"expected the element type of an array, found {self.found()}"
            help = "an array type is [2]i16, an array [2]i16{ 1, 2 }, a tuple .{ 1, 2 }"
            raise self.failure("csl-expected-expression", message, help)
        element = self.type_expression()
        return ast.ArrayType(dims, element, span=self.since(opener.start))

    def keyword_type(self) -> ast.Expression | None:
        """Parse the type or assembly that a keyword opens; None where none does."""
        match self.token.text:
            case "fn" | "task":
                return self._function_type()
            case "struct" | "union" | "packed" | "extern":
                return self._aggregate_type()
            case "enum":
                return self._enum_type()
            case "anytype":
                token = self.advance()
                return ast.AnyType(span=self.span_of(token))
            case "asm":
                return self._asm()
            case _:
                return None

    def _function_type(self) -> ast.FunctionType:
        start = self.token.start
        kind = ast.FunctionKind(self.advance().text)
        opener = self.expect("(", "in a function type")
        parameters = self.items(opener, "the parameters", self._parameter_type)
        result = self.type_expression()
        return ast.FunctionType(kind, parameters, result, span=self.since(start))

    def _parameter_type(self) -> ast.Expression:
        """Parse the type of a parameter; a name before it says nothing to a type."""
        if self.token.kind is TokenKind.NAME and self.ahead(1).text == ":":
            self.name("a parameter")
            self.advance()
        return self.expression()

    def _aggregate_type(self) -> ast.AggregateType:
        start = self.token.start
        layout = ast.AggregateLayout.AUTO
        if self.token.text in {"packed", "extern"}:
            layout = ast.AggregateLayout(self.advance().text)
        is_union = self.accept("union")
        if not is_union:
            self.expect("struct", f"or 'union' after '{layout}'")
        opener = self.expect("{", "before the fields")
        fields = self.items(opener, "the fields", self._field)
        return ast.AggregateType(layout, is_union, fields, span=self.since(start))

    def _field(self) -> ast.Field:
        start = self.token.start
        name = self.name("a field")
        self.expect(":", "between a field and its type", "write 'name: type'")
        return ast.Field(name, self.expression(), span=self.since(start))

    def _enum_type(self) -> ast.EnumType:
        start = self.advance().start
        tag = None
        if self.token.text == "(":
            opener = self.advance()
            tag = self.expression()
            self.close(opener, "the type of an enum")
        opener = self.expect("{", "before the elements of an enum")
        elements = self.items(opener, "the elements of an enum", self._enum_element)
        return ast.EnumType(tag, elements, span=self.since(start))

    def _enum_element(self) -> ast.EnumElement:
        start = self.token.start
        name = self.name("an element of an enum")
        value = self.expression() if self.accept("=") else None
        return ast.EnumElement(name, value, span=self.since(start))

    def _asm(self) -> ast.Asm:
        start = self.advance().start
        is_volatile = self.accept("volatile")
        opener = self.expect("(", "after 'asm'")
        template = self.expression()
        self.accept(",")
        outputs = self._asm_part(self._asm_operand)
        inputs = self._asm_part(self._asm_operand)
        clobbers = self._asm_part(self._string)
        self.close(opener, "the assembly")
        span = self.since(start)
        return ast.Asm(is_volatile, template, outputs, inputs, clobbers, span=span)

    def _asm_part(self, item: Callable[[], Item]) -> tuple[Item, ...]:
        """Parse what follows a colon, up to the next one or the end."""
        found: list[Item] = []
        if self.accept(":"):
            while self.token.text not in {":", ")", ""}:
                found.append(item())
                if not self.accept(","):
                    break
        return tuple(found)

    def _asm_operand(self) -> ast.AsmOperand:
        start = self.expect("[", "before the name of an operand", _OPERAND).start
        name = self.name("an operand")
        self.expect("]", "after the name of an operand")
        constraint = self._string()
        opener = self.expect("(", "before the value of an operand")
        value = self.expression()
        self.close(opener, "the value of an operand")
        return ast.AsmOperand(name, constraint, value, span=self.since(start))

    def _string(self) -> ast.StringLiteral:
        node = self.literal() if self.token.kind is TokenKind.STRING else None
        if not isinstance(node, ast.StringLiteral):
            raise self.failure(
                "csl-expected-expression", f"expected a string, found {self.found()}"
            )
        return node
