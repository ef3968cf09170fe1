"""The grammar of blocks, branches, loops, jumps, and of the statements inside."""

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.operators import COMPOUND
from openwafer.sdk.csl.parser_cursor import AbandonedError
from openwafer.sdk.csl.parser_expressions import ExpressionParser
from openwafer.sdk.csl.tokens import TokenKind

_ASSIGNMENTS = {"=": None, **{f"{operator}=": operator for operator in COMPOUND}}
_LABELLED = frozenset({"{", "for", "while", "inline"})
_FOREIGN_ELSE = frozenset({"elif", "elsif", "elseif"})
_ATTRIBUTES = ("align", "linksection", "linkname")
_NO_VALUE = frozenset({";", ",", ")", "]", "}", "else", ""})


class BlockParser(ExpressionParser):
    """Parses what holds statements, and statements.

    As a statement, a block or branch ends with its last brace, and the bodies of branches may be
    assignments; as an expression, both may be followed by operators.
    """

    def control_flow(self) -> ast.Expression | None:
        """Parse the block, branch, loop or jump that starts here; None where none does."""
        match self.token.text:
            case "return":
                return self._return()
            case "break":
                return self._break()
            case "continue":
                start = self.advance().start
                return ast.Continue(self._label_reference(), span=self.since(start))
            case "comptime":
                start = self.advance().start
                return ast.Comptime(self.expression(), span=self.since(start))
            case _:
                return self._bracketed(is_statement=False)

    def _bracketed(self, *, is_statement: bool) -> ast.Expression | None:
        """Parse the block, branch or loop that starts here; None where none does."""
        start = self.token.start
        label = self._label()
        match self.token.text:
            case "{":
                return self.block(label, start)
            case "for" | "while" | "inline":
                return self._loop(label, start)
            case "if":
                return self._if(is_statement=is_statement)
            case "switch":
                return self._switch(is_statement=is_statement)
            case _:
                return None

    def _label(self) -> ast.Name | None:
        is_label = self.token.kind is TokenKind.NAME and self.ahead(1).text == ":"
        if not is_label or self.ahead(2).text not in _LABELLED:
            return None
        name = self.name("a label")
        self.advance()
        return name

    def body(self) -> ast.Body:
        """Parse what a branch or loop runs: a block, an expression or an assignment."""
        self.deeper()
        start = self.token.start
        node: ast.Body | None
        if self.token.text == "comptime":
            self.advance()
            node = ast.Comptime(self.body(), span=self.since(start))
        else:
            node = self._bracketed(is_statement=True)
        if node is None:
            node = self._expression_or_assignment()
        self.depth -= 1
        return node

    def _expression_or_assignment(self) -> ast.Body:
        start = self.token.start
        target = self.expression()
        if self.token.text not in _ASSIGNMENTS:
            return target
        operator = _ASSIGNMENTS[self.advance().text]
        value = self.expression()
        return ast.Assign(operator, target, value, span=self.since(start))

    def _branch(self, *, is_statement: bool) -> ast.Body:
        return self.body() if is_statement else self.expression()

    def _condition(self, word: str) -> ast.Expression:
        opener = self.expect("(", f"after '{word}'", f"write '{word} (...)'")
        condition = self.expression()
        self.close(opener, f"what follows '{word}'")
        return condition

    def _if(self, *, is_statement: bool) -> ast.If:
        start = self.advance().start
        condition = self._condition("if")
        then = self._branch(is_statement=is_statement)
        otherwise = self._branch(is_statement=is_statement) if self.accept("else") else None
        return ast.If(condition, then, otherwise, span=self.since(start))

    def _loop(self, label: ast.Name | None, start: int) -> ast.For | ast.While:
        is_inline = self.accept("inline")
        if self.token.text == "for":
            return self._for(label, start, is_inline=is_inline)
        if self.token.text == "while":
            return self._while(label, start, is_inline=is_inline)
        message = f"expected 'for' or 'while' after 'inline', found {self.found()}"
        raise self.failure("csl-expected-token", message)

    def _for(self, label: ast.Name | None, start: int, *, is_inline: bool) -> ast.For:
        self.advance()
        if self.ahead(2).text == "=":
            remedy = "a loop over numbers is written: for (@range(i16, n)) |i| { ... }"
            message = "'for' runs over an array or a range, not while a condition holds"
            raise self.failure("csl-expected-expression", message, remedy)
        iterable = self._condition("for")
        remedy = "name the element: for (...) |element| { ... }"
        self.expect("|", "after what a 'for' runs over", remedy)
        element = self.name("the element")
        index = self.name("the index") if self.accept(",") else None
        self.expect("|", "behind the names of a 'for'")
        body = self.body()
        return ast.For(label, is_inline, iterable, element, index, body, span=self.since(start))

    def _while(self, label: ast.Name | None, start: int, *, is_inline: bool) -> ast.While:
        self.advance()
        condition = self._condition("while")
        step = None
        if self.accept(":"):
            opener = self.expect("(", "before the step of a 'while'", "write ': (i += 1)'")
            step = self._expression_or_assignment()
            self.close(opener, "the step of a 'while'")
        body = self.body()
        return ast.While(label, is_inline, condition, step, body, span=self.since(start))

    def _switch(self, *, is_statement: bool) -> ast.Switch:
        start = self.advance().start
        operand = self._condition("switch")
        opener = self.expect("{", "before the cases of a 'switch'")
        parse = self._statement_prong if is_statement else self._expression_prong
        prongs = self.items(opener, "the 'switch'", parse)
        return ast.Switch(operand, prongs, span=self.since(start))

    def _statement_prong(self) -> ast.Prong:
        return self._prong(is_statement=True)

    def _expression_prong(self) -> ast.Prong:
        return self._prong(is_statement=False)

    def _prong(self, *, is_statement: bool) -> ast.Prong:
        start = self.token.start
        values: list[ast.Expression | ast.CaseRange] = []
        if not self.accept("else"):
            values.append(self._case())
            while self.accept(",") and self.token.text != "=>":
                values.append(self._case())
        self.arrow("=>", "->", "before what a case does")
        body = self._branch(is_statement=is_statement)
        return ast.Prong(tuple(values), body, span=self.since(start))

    def _case(self) -> ast.Expression | ast.CaseRange:
        start = self.token.start
        first = self.expression()
        if self.token.text == "..":
            span = self.span_of(self.token)
            self.report("csl-expected-token", "a range has three dots", span, help="write '...'")
        elif self.token.text != "...":
            return first
        self.advance()
        return ast.CaseRange(first, self.expression(), span=self.since(start))

    def _return(self) -> ast.Return:
        start = self.advance().start
        return ast.Return(self._jump_value(), span=self.since(start))

    def _break(self) -> ast.Break:
        start = self.advance().start
        label = self._label_reference()
        return ast.Break(label, self._jump_value(), span=self.since(start))

    def _label_reference(self) -> ast.Name | None:
        return self.name("a label") if self.accept(":") else None

    def _jump_value(self) -> ast.Expression | None:
        return None if self.token.text in _NO_VALUE else self.expression()

    def block(self, label: ast.Name | None, start: int) -> ast.Block:
        """Parse `{ statements }`, which begins at `start` with its label."""
        opener = self.expect("{", "before the statements of a block")
        self.deeper()
        statements: list[ast.Statement] = []
        while self.token.text not in {"}", ""} and not self.is_new_declaration():
            depth, first = self.depth, self.index
            try:
                statements += self._statements()
            except AbandonedError as error:
                self.depth = depth
                self.abandon(error, first)
        self.depth -= 1
        self.close(opener, "the block")
        return ast.Block(label, tuple(statements), span=self.since(start))

    def _statements(self) -> list[ast.Statement]:
        """Parse one statement; a lone semicolon is none."""
        if self.accept(";"):
            return []
        self._refuse_stranger()
        text = self.token.text
        is_comptime = text == "comptime" and self.ahead(1).text in {"var", "const"}
        if is_comptime or text in {"var", "const"}:
            return [self.variable(self.token.start, ast.Storage.INTERNAL)]
        node = self.body()
        if ends_in_block(node):
            self.accept(";")
        else:
            self._refuse_second_name(node)
            self.end_statement("the statement")
        return [node]

    def _refuse_stranger(self) -> None:
        """Raise a failure for what begins no statement but is often meant for one."""
        text = self.token.text
        if self.starts_declaration():
            message = f"{self.found()} cannot stand inside a block"
            raise self.failure("csl-misplaced", message, "move it to the top of the file")
        if text == "else":
            remedy = "no ';' stands before 'else'"
            raise self.failure("csl-misplaced", "this 'else' belongs to no 'if'", remedy)
        if text in _FOREIGN_ELSE and self.previous.text == "}":
            raise self.failure(
                "csl-misplaced", f"'{text}' has no meaning in CSL", "write 'else if'"
            )

    def _refuse_second_name(self, node: ast.Body) -> None:
        if isinstance(node, ast.Identifier) and self.token.kind is TokenKind.NAME:
            message = f"expected ';' or an operator after '{node.name}', found {self.found()}"
            remedy = f"a variable is declared: var {self.token.text}: {node.name} = ...;"
            if not self.is_line_start():
                raise self.failure("csl-expected-token", message, remedy)

    def variable(self, start: int, storage: ast.Storage) -> ast.Variable:
        """Parse `comptime var name: type attributes = initializer;` behind its storage class."""
        is_comptime = self.accept("comptime")
        kind = ast.VariableKind(self.advance().text)
        name = self.name("a variable")
        declared = self.type_of(name)
        attributes = self.attributes(start)
        initializer = self.expression() if self.accept("=") else None
        self.end_statement("the declaration")
        span = self.since(start)
        return ast.Variable(
            kind, storage, is_comptime, name, declared, attributes, initializer, span=span
        )

    def type_of(self, name: ast.Name) -> ast.Expression | None:
        """Parse `: type` behind `name`; None where there is no type, a missing ':' is reported."""
        starts_type = self.token.kind is TokenKind.NAME or self.token.text in {"*", "["}
        if not starts_type and self.token.text != ":":
            return None
        if not self.accept(":"):
            message = f"expected ':' between '{name.text}' and its type, found {self.found()}"
            span = self.behind_previous()
            self.report("csl-expected-token", message, span, help="write 'name: type'")
        return self.type_expression()

    def attributes(
        self, start: int, values: dict[str, ast.Expression] | None = None
    ) -> ast.Attributes:
        """Parse `align(n) linksection(s) linkname(s)`, in any order, and add them to `values`."""
        values = {} if values is None else values
        while (word := self.token.text) in _ATTRIBUTES:
            if word in values:
                span = self.span_of(self.token)
                self.report("csl-misplaced", f"a second '{word}'", span, help="keep one of them")
            self.advance()
            opener = self.expect("(", f"after '{word}'")
            values[word] = self.expression()
            self.close(opener, f"the value of '{word}'")
        return ast.Attributes(*map(values.get, _ATTRIBUTES), span=self.since(start))


def ends_in_block(node: ast.Statement) -> bool:
    """Whether `node`, as a statement, needs no semicolon behind it."""
    match node:
        case ast.Block() | ast.Switch():
            return True
        case ast.If(then=then, otherwise=otherwise):
            return ends_in_block(then if otherwise is None else otherwise)
        case ast.For(body=body) | ast.While(body=body) | ast.Comptime(operand=body):
            return ends_in_block(body)
        case _:
            return False
