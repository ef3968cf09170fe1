"""From source text to the syntax tree: `parse`, and the grammar of declarations."""

from openwafer.diagnostics import Diagnostic
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.lexer import tokenize
from openwafer.sdk.csl.parser_blocks import BlockParser
from openwafer.sdk.csl.parser_cursor import AbandonedError
from openwafer.sdk.csl.tokens import TokenKind
from openwafer.source import SourceText, Span


def parse(source: SourceText) -> tuple[ast.Module, tuple[Diagnostic, ...]]:
    """Parse a file of CSL.

    Returns the declarations that could be read and every syntax error found, in the order of the
    text; the module is the whole file exactly when there is no error.
    """
    tokens, diagnostics = tokenize(source)
    parser = _ModuleParser(source, tokens, diagnostics)
    module = parser.module()
    return module, tuple(sorted(parser.diagnostics, key=_start))


def _start(diagnostic: Diagnostic) -> int:
    return 0 if diagnostic.span is None else diagnostic.span.start


class _ModuleParser(BlockParser):
    """Parses declarations."""

    def module(self) -> ast.Module:
        """Parse all declarations up to the end of the file."""
        declarations: list[ast.Declaration] = []
        while self.token.kind is not TokenKind.END:
            self.depth, first = 0, self.index
            try:
                declarations += self._declarations()
            except AbandonedError as error:
                self.abandon(error, first)
                self.accept("}")
        return ast.Module(tuple(declarations), span=Span(self.source, 0, len(self.source.text)))

    def _declarations(self) -> list[ast.Declaration]:
        """Parse one declaration; a lone semicolon is none."""
        start = self.token.start
        if self.accept(";"):
            return []
        storage = ast.Storage.INTERNAL
        if self.token.text in {"export", "extern"}:
            storage = ast.Storage(self.advance().text)
        text, following = self.token.text, self.ahead(1)
        if text in {"fn", "task", "inline"}:
            return [self._function(start, storage)]
        is_parameter = text == "param" or (text == "color" and following.kind is TokenKind.NAME)
        is_comptime = text == "comptime" and following.text == "var"
        if text in {"const", "var"} or ((is_parameter or is_comptime) and not storage):
            return [self._global(start, storage)]
        if text in {"comptime", "layout"} and following.text == "{" and not storage:
            self.advance()
            body = self.block(None, following.start)
            kind = ast.ComptimeBlock if text == "comptime" else ast.LayoutBlock
            return [kind(body, span=self.since(start))]
        raise self._no_declaration(storage)

    def _no_declaration(self, storage: ast.Storage) -> AbandonedError:
        if storage:
            message = f"expected 'var', 'const' or 'fn' after '{storage}', found {self.found()}"
            return self.failure("csl-expected-token", message)
        if self.token.text == "}":
            return self.failure("csl-unmatched-brace", "this '}' closes nothing", "remove it")
        message = f"expected a declaration, found {self.found()}"
        is_statement = self.token.kind is TokenKind.BUILTIN or self.ahead(1).text in {"=", "(", "."}
        remedy = "statements stand in a fn, a task, comptime { ... } or layout { ... }"
        if self.token.text in {"struct", "union", "enum", "packed"}:
            remedy = f"a type gets its name by: const Name = {self.token.text} ...;"
        elif not is_statement:
            remedy = ""
        return self.failure("csl-expected-declaration", message, remedy)

    def _global(self, start: int, storage: ast.Storage) -> ast.Variable:
        variable = self.variable(start, storage)
        if storage is ast.Storage.EXTERN and variable.initializer is not None:
            self.report(
                "csl-extern-with-value",
                f"'{variable.name.text}' is extern and cannot have an initializer here",
                variable.initializer.span,
                help="remove the initializer, or write 'export' where it is defined",
            )
        return variable

    def _function(self, start: int, storage: ast.Storage) -> ast.Function:
        is_inline = self.accept("inline")
        if self.token.text != "task":
            self.expect("fn", "after 'inline'")
            kind = ast.FunctionKind.FN
        else:
            self.advance()
            kind = ast.FunctionKind.TASK
        name = self.name("a function")
        opener = self.expect("(", f"after the name '{name.text}'")
        parameters = self.items(opener, "the parameters", self._parameter)
        attributes: dict[str, ast.Expression] = {}
        self.attributes(start, attributes)
        if self.token.text == "->":
            span = self.span_of(self.advance())
            message = "the result type follows the parameters without an arrow"
            self.report("csl-wrong-arrow", message, span, help="remove '->'")
        result = None if self.token.text in {"{", ";"} else self.type_expression()
        every = self.attributes(start, attributes)
        body = self._function_body(storage, name)
        self._check_names(storage, parameters)
        span = self.since(start)
        return ast.Function(
            kind, storage, is_inline, name, parameters, result, every, body, span=span
        )

    def _function_body(self, storage: ast.Storage, name: ast.Name) -> ast.Block | None:
        if storage is not ast.Storage.EXTERN:
            help = "only an extern fn has no body" if self.token.text == ";" else ""
            if self.token.text != "{":
                message = f"expected the body of '{name.text}', found {self.found()}"
                raise self.failure("csl-expected-token", message, help)
            return self.block(None, self.token.start)
        if self.token.text == "{":
            body = self.block(None, self.token.start)
            help = "write ';' instead of the body, or 'export' where it is defined"
            message = f"'{name.text}' is extern and cannot have a body here"
            self.report("csl-extern-with-value", message, body.span, help=help)
            return None
        self.end_statement("the declaration")
        return None

    def _parameter(self) -> ast.Parameter:
        start = self.token.start
        is_comptime = self.accept("comptime")
        following = self.ahead(1)
        is_missing_colon = self.token.kind is TokenKind.NAME and (
            following.kind in {TokenKind.NAME, TokenKind.KEYWORD} or following.text == "*"
        )
        is_named = following.text == ":" or is_missing_colon
        name = self.name("a parameter") if is_named else None
        declared = None if name is None else self.type_of(name)
        return ast.Parameter(
            is_comptime, name, declared or self.type_expression(), span=self.since(start)
        )

    def _check_names(self, storage: ast.Storage, parameters: tuple[ast.Parameter, ...]) -> None:
        for parameter in parameters:
            if parameter.name is None and storage is not ast.Storage.EXTERN:
                self.report(
                    "csl-expected-name",
                    f"expected 'name: type' for a parameter, found '{parameter.span.text}'",
                    parameter.span,
                    help=f"write '{parameter.span.text}: type', or give the type a name",
                )
