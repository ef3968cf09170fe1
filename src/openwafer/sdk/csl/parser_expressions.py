"""The grammar of values and types, which in CSL is one grammar."""

from abc import abstractmethod

from openwafer.sdk.csl import ast, literals
from openwafer.sdk.csl.operators import PRECEDENCE, BinaryOperator, UnaryOperator
from openwafer.sdk.csl.parser_types import TypeParser
from openwafer.sdk.csl.tokens import Token, TokenKind
from openwafer.source import Span

_BINARY = {operator.value: operator for operator in BinaryOperator}
_FOREIGN_BINARY = {"&&": BinaryOperator.AND, "||": BinaryOperator.OR}
_UNARY = {operator.value: operator for operator in UnaryOperator}
_COMPARISON = PRECEDENCE[BinaryOperator.EQUAL]
# What may stand before the braces of a literal; after others a '{' begins something else.
_LITERAL_TYPES = (
    ast.Identifier,
    ast.Member,
    ast.Call,
    ast.BuiltinCall,
    ast.Index,
    ast.ArrayType,
    ast.AggregateType,
)


class ExpressionParser(TypeParser):
    """Parses expressions; what holds statements is left to the class that knows them."""

    @abstractmethod
    def control_flow(self) -> ast.Expression | None:
        """Parse the block, branch, loop or jump that starts here; None where none does."""

    def expression(self) -> ast.Expression:
        """Parse a value or type, as far as it reaches."""
        start = self.token.start
        return self._operations(self._prefixed(), start, 1)

    def _operations(self, left: ast.Expression, start: int, level: int) -> ast.Expression:
        """Extend `left`, which begins at `start`, by operators that bind at `level` or tighter."""
        was_comparison = False
        while (operator := self._operator()) and (tightness := PRECEDENCE[operator]) >= level:
            if was_comparison and tightness == _COMPARISON:
                self._report_chain()
            was_comparison = tightness == _COMPARISON
            self.advance()
            if self.token.text == "*" == self.previous.text:
                raise self._no_expression()  # not `a * (*T)`: a product has no types
            right_start = self.token.start
            right = self._operations(self._prefixed(), right_start, tightness + 1)
            left = ast.Binary(operator, left, right, span=self.since(start))
        return left

    def _operator(self) -> BinaryOperator | None:
        text = self.token.text
        operator = _BINARY.get(text)
        if operator is None and (operator := _FOREIGN_BINARY.get(text)):
            span = self.span_of(self.token)
            message = f"'{text}' is not an operator of CSL"
            self.report("csl-foreign-operator", message, span, help=f"write '{operator}'")
        return operator

    def _report_chain(self) -> None:
        self.report(
            "csl-chained-comparison",
            f"comparisons do not chain, found a second one: {self.found()}",
            self.span_of(self.token),
            help="join two comparisons with 'and', or put one into parentheses",
        )

    def _prefixed(self) -> ast.Expression:
        """Parse an operand with the operators before it."""
        token = self.token
        if token.text != "&" and token.text not in _UNARY:
            return self._operand()
        self.deeper()
        self.advance()
        operand = self._prefixed()
        self.depth -= 1
        if token.text == "&":
            return ast.AddressOf(operand, span=self.since(token.start))
        return ast.Unary(_UNARY[token.text], operand, span=self.since(token.start))

    def _operand(self) -> ast.Expression:
        """Parse a type or value, with the braces of a literal behind it."""
        start = self.token.start
        node = self.type_expression()
        while self.token.text == "{" and isinstance(node, _LITERAL_TYPES):
            node = self._suffixed(self._initializer(node, start), start)
        return node

    def type_expression(self) -> ast.Expression:
        """Parse an expression that a block may follow: no operators, no literal in braces."""
        token = self.token
        self.deeper()
        node = self.pointer_or_array_type()
        if node is None:
            node = self._suffixed(self._primary(), token.start)
        self.depth -= 1
        return node

    def _suffixed(self, node: ast.Expression, start: int) -> ast.Expression:
        """Extend `node`, which begins at `start`, by calls, indices, members, dereferences."""
        while True:
            text = self.token.text
            if text == "(":
                arguments = self.items(self.advance(), "the arguments", self.expression)
                node = ast.Call(node, arguments, span=self.since(start))
            elif text == "[":
                indices = self.expressions("the index")
                node = ast.Index(node, indices, span=self.since(start))
            elif text == ".":
                self.advance()
                node = ast.Member(node, self._member_name(), span=self.since(start))
            elif text == ".*":
                self.advance()
                node = ast.Dereference(node, span=self.since(start))
            else:
                return node

    def _member_name(self) -> ast.Name:
        token = self.token
        if token.kind is TokenKind.KEYWORD and token.start == self.previous.end:
            return ast.Name(self.advance().text, span=self.span_of(token))
        return self.name("a member")

    def _primary(self) -> ast.Expression:
        token = self.token
        match token.kind:
            case TokenKind.NAME:
                node = self.control_flow() if self.ahead(1).text == ":" else None
                return node or ast.Identifier(self.advance().text, span=self.span_of(token))
            case TokenKind.INT | TokenKind.FLOAT | TokenKind.CHAR | TokenKind.STRING:
                return self.literal()
            case TokenKind.BUILTIN:
                return self._builtin_call()
            case TokenKind.SYMBOL:
                return self._after_symbol()
            case TokenKind.KEYWORD:
                return self._after_keyword()
            case TokenKind.STRAY | TokenKind.END:
                raise self._no_expression()

    def _no_expression(self) -> Exception:
        message = f"expected an expression, found {self.found()}"
        help = "an empty block is {}" if self.previous.text == ")" else ""
        return self.failure("csl-expected-expression", message, help)

    def literal(self) -> ast.Literal:
        """Parse a number, character or string; one that is malformed is reported and read as 0."""
        token = self.advance()
        span = self.span_of(token)
        try:
            return _literal(token, span)
        except literals.LiteralError as error:
            self.report("csl-malformed-literal", error.message, span, help=error.remedy)
            return ast.IntLiteral(0, span=span)

    def _builtin_call(self) -> ast.BuiltinCall:
        token = self.advance()
        name = ast.Name(token.text[1:], span=self.span_of(token))
        opener = self.expect("(", f"after the builtin '{token.text}'", "builtins are always called")
        arguments = self.items(opener, f"the arguments of '{token.text}'", self.expression)
        return ast.BuiltinCall(name, arguments, span=self.since(token.start))

    def _after_symbol(self) -> ast.Expression:
        start = self.token.start
        match self.token.text:
            case "(":
                opener = self.advance()
                inner = self.expression()
                self.close(opener, "the parenthesis")
                return inner
            case "." if self.ahead(1).text == "{":
                self.advance()
                return self._initializer(None, start)
            case ".":
                self.advance()
                return ast.EnumLiteral(self._member_name(), span=self.since(start))
            case "|":
                return self._tensor_access()
            case _:
                return self._control_flow_here()

    def _control_flow_here(self) -> ast.Expression:
        node = self.control_flow()
        if node is None:
            raise self._no_expression()
        return node

    def _initializer(self, of: ast.Expression | None, start: int) -> ast.Expression:
        """Parse the braces of a literal of type `of`, which begins at `start`."""
        opener = self.advance()
        if self._is_field():
            fields = self.items(opener, "the literal", self._field_init)
            return ast.StructInit(of, fields, span=self.since(start))
        elements = self.items(opener, "the literal", self._element)
        return ast.ArrayInit(of, elements, span=self.since(start))

    def _is_field(self) -> bool:
        return self.token.text == "." and self.ahead(2).text == "="

    def _field_init(self) -> ast.FieldInit:
        start = self.token.start
        if not self._is_field():
            message = f"expected '.name = value' as in the fields before, found {self.found()}"
            help = f"write '.{self.token.text} = ...'" if self.ahead(1).text == "=" else ""
            raise self.failure("csl-expected-field", message, help)
        self.advance()
        name = self._member_name()
        self.advance()
        return ast.FieldInit(name, self.expression(), span=self.since(start))

    def _element(self) -> ast.Expression:
        if self._is_field():
            message = "a value with a name among values without one"
            raise self.failure("csl-expected-field", message, "name all values or none")
        if self.ahead(1).text == "=" and self.token.kind is TokenKind.NAME:
            message = f"expected '.{self.token.text}' for a field, found '{self.token.text}'"
            raise self.failure("csl-expected-field", message, "a field's name begins with a dot")
        return self.expression()

    def _tensor_access(self) -> ast.TensorAccess:
        start = self.advance().start
        indices = [self.name("an index")]
        while self.accept(","):
            indices.append(self.name("an index"))
        self.expect("|", "behind the indices of a tensor access")
        if self.token.text != "{":
            self.expect("{", "before the shape of a tensor access", "write |i|{N} -> A[i]")
        shape = self.expressions("the shape of a tensor access")
        self.arrow("->", "=>", "after the shape of a tensor access")
        element = self.expression()
        return ast.TensorAccess(tuple(indices), shape, element, span=self.since(start))

    def arrow(self, right: str, wrong: str, where: str) -> None:
        """Step over the arrow `right`; the arrow `wrong` is reported and taken for it."""
        if self.token.text != wrong:
            self.expect(right, where)
            return
        message = f"expected '{right}' {where}, found '{wrong}'"
        span = self.span_of(self.advance())
        self.report("csl-wrong-arrow", message, span, help=f"write '{right}' here")

    def _after_keyword(self) -> ast.Expression:
        token = self.token
        if token.text in {"true", "false"}:
            return ast.BoolLiteral(self.advance().text == "true", span=self.span_of(token))
        return self.keyword_type() or self._control_flow_here()


def _literal(token: Token, span: Span) -> ast.Literal:
    match token.kind:
        case TokenKind.INT:
            return ast.IntLiteral(literals.int_value(token.text), span=span)
        case TokenKind.FLOAT:
            return ast.FloatLiteral(literals.float_value(token.text), span=span)
        case TokenKind.CHAR:
            return ast.CharLiteral(literals.char_value(token.text), span=span)
        case _:
            return ast.StringLiteral(literals.bytes_value(token.text), span=span)
