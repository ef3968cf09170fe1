"""A place in a list of tokens, with the reports made on the way."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl.ast import Name
from openwafer.sdk.csl.parser_remedies import remedy_for_name, remedy_for_words, stray_remedy
from openwafer.sdk.csl.tokens import Token, TokenKind
from openwafer.source import SourceText, Span

Item = TypeVar("Item")

CLOSERS = {"(": ")", "[": "]", "{": "}"}
# Deep enough for people, shallow enough for the stack of Python.
MAX_NESTING = 80
_STATEMENT_WORDS = frozenset({"const", "var", "return", "break", "continue", "for", "while"})
_INSIDE_STATEMENT = frozenset({",", ")", "]", ".", ".*", "else"})
_BRACES = {"{": 1, "}": -1}
_PARENTHESES = {"(": 1, ")": -1}


class AbandonedError(Exception):
    """Unwinds the parser to the statement or declaration that it gives up."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


@dataclass
class Cursor:
    """Steps through `tokens`, the last of which is an END; it never steps past that."""

    source: SourceText
    tokens: list[Token]
    diagnostics: list[Diagnostic]
    index: int = 0
    depth: int = 0
    token: Token = field(init=False)

    def __post_init__(self) -> None:
        self.token = self.tokens[self.index]

    @property
    def previous(self) -> Token:
        """The token before the current one; the first token has itself before it."""
        return self.tokens[max(0, self.index - 1)]

    def ahead(self, distance: int) -> Token:
        """The token `distance` behind the current one, or the END."""
        return self.tokens[min(self.index + distance, len(self.tokens) - 1)]

    def advance(self) -> Token:
        """Step over the current token and return it."""
        token = self.token
        if token.kind is not TokenKind.END:
            self.index += 1
            self.token = self.tokens[self.index]
        return token

    def accept(self, text: str) -> bool:
        """Step over the keyword or symbol `text` if it is here; whether it was."""
        if self.token.text != text:
            return False
        self.advance()
        return True

    def since(self, start: int) -> Span:
        """From offset `start` to the end of the token stepped over last."""
        return Span(self.source, start, max(start, self.previous.end))

    def span_of(self, token: Token) -> Span:
        """The characters of `token`."""
        return Span(self.source, token.start, token.end)

    def found(self) -> str:
        """The current token in words."""
        return f"'{self.token.text}'" if self.token.text else "the end of the file"

    def report(
        self, code: str, message: str, span: Span, *, notes: tuple[str, ...] = (), help: str = ""
    ) -> None:
        """Keep an error and go on."""
        self._keep(Diagnostic(Severity.ERROR, code, message, span, notes, help))

    def _keep(self, diagnostic: Diagnostic) -> None:
        # A second report about what touches the place of the first says nothing new.
        last = self.diagnostics[-1].span if self.diagnostics else None
        span = diagnostic.span
        if last is None or span is None or not last.start <= span.start <= last.end:
            self.diagnostics.append(diagnostic)

    def failure(self, code: str, message: str, help: str = "") -> AbandonedError:
        """Return the error about the current token that ends its statement or declaration."""
        span = self.span_of(self.token)
        if self.token.kind is TokenKind.STRAY:
            code, message = "csl-stray-character", f"{self.found()} has no meaning in CSL"
            help = stray_remedy(self.token.text)
        help = help or remedy_for_words(self.tokens[max(0, self.index - 3) : self.index + 1])
        return AbandonedError(Diagnostic(Severity.ERROR, code, message, span, help=help))

    def deeper(self) -> None:
        """Count one level of nesting; whoever calls it takes the level off again."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            message = f"nested more than {MAX_NESTING} levels deep"
            raise self.failure("csl-too-deep", message, "name an inner part as a const or function")

    def expect(self, text: str, where: str, help: str = "") -> Token:
        """Step over the keyword or symbol `text`; a failure where it is missing."""
        if self.token.text != text:
            message = f"expected '{text}' {where}, found {self.found()}"
            raise self.failure("csl-expected-token", message, help)
        return self.advance()

    def name(self, what: str) -> Name:
        """Step over a name that is declared here; a keyword is reported and taken for it."""
        token = self.token
        if token.kind is TokenKind.KEYWORD:
            self.report(
                "csl-keyword-as-name",
                f"'{token.text}' is a keyword and cannot name {what}",
                self.span_of(token),
                help=f"choose another name, such as '{token.text}_'",
            )
        elif token.kind is not TokenKind.NAME:
            message = f"expected a name for {what}, found {self.found()}"
            raise self.failure("csl-expected-name", message, remedy_for_name(token))
        self.advance()
        return Name(token.text, span=self.span_of(token))

    def items(self, opener: Token, inside: str, item: Callable[[], Item]) -> tuple[Item, ...]:
        """Items between commas up to the bracket that closes `opener`, which is stepped over."""
        closer = CLOSERS[opener.text]
        found: list[Item] = []
        while self.token.text != closer and self.token.kind is not TokenKind.END:
            found.append(item())
            if not self._separates(closer, inside):
                break
        if self.token.text != closer and not self._is_statement_over():
            message = f"expected ',' or '{closer}' in {inside}, found {self.found()}"
            raise self.failure("csl-expected-token", message)
        self.close(opener, inside)
        return tuple(found)

    def _separates(self, closer: str, inside: str) -> bool:
        """Step over the comma behind an item; whether another item may follow.

        Between braces, a semicolon or line break in its place is reported and taken for it.
        """
        if self.accept(","):
            return True
        is_semicolon = self.token.text == ";"
        is_break = self.is_line_start() and self.token.text not in {closer, *_STATEMENT_WORDS}
        if closer != "}" or not (is_semicolon or is_break) or self._is_declaration_or_end():
            return False
        message = f"expected ',' or '}}' in {inside}, found {self.found()}"
        span = self.span_of(self.advance()) if is_semicolon else self.behind_previous()
        self.report("csl-missing-comma", message, span, help="write ',' here")
        return True

    def _is_declaration_or_end(self) -> bool:
        return self.is_new_declaration() or self.token.kind is TokenKind.END

    def close(self, opener: Token, inside: str) -> None:
        """Step over the bracket that closes `opener`.

        At the end of a statement its absence is reported and it is taken as closed.
        """
        closer = CLOSERS[opener.text]
        if self.accept(closer):
            return
        message = f"expected '{closer}' to close {inside}, found {self.found()}"
        if not self._is_statement_over():
            raise self.failure("csl-expected-token", message)
        place = self.source.position(opener.start)
        self.report(
            "csl-unclosed-bracket",
            message,
            self.behind_previous(),
            notes=(f"'{opener.text}' was opened at {place.line}:{place.column}",),
            help=f"write '{closer}' here",
        )

    def _is_statement_over(self) -> bool:
        text = self.token.text
        is_next = self.is_line_start() and text in _STATEMENT_WORDS
        return text in {";", "{", "}", ""} or is_next or self.is_new_declaration()

    def behind_previous(self) -> Span:
        """The place right behind the token stepped over last."""
        return Span(self.source, self.previous.end, self.previous.end)

    def is_line_start(self) -> bool:
        """Whether the current token is the first of its line."""
        return "\n" in self.source.text[self.previous.end : self.token.start]

    def end_statement(self, after: str) -> None:
        """Step over the ';' that ends `after`; where only it is missing, report that and go on."""
        if self.accept(";"):
            return
        if not self.is_line_start() and self.token.text not in {"}", ""}:
            message = f"expected ';' or an operator after {after}, found {self.found()}"
            help = "write ';' instead" if self.token.text == "," else ""
            raise self.failure("csl-expected-token", message, help)
        self.report(
            "csl-missing-semicolon",
            f"expected ';' after {after}",
            self.behind_previous(),
            help="write ';' here",
        )

    def starts_declaration(self) -> bool:
        """Whether a declaration starts here that no block can hold."""
        following = self.ahead(1)
        if self.token.text in {"export", "extern"}:
            return following.text in {"var", "const", "fn", "task", "inline"}
        return self.token.text in {"fn", "task", "param"} and following.kind is TokenKind.NAME

    def is_new_declaration(self) -> bool:
        """Whether such a declaration starts at the left edge, so that all before it is over."""
        start = self.token.start
        is_left = start == 0 or self.source.text[start - 1] == "\n"
        return is_left and self.starts_declaration()

    def abandon(self, error: AbandonedError, first: int) -> None:
        """Report `error`, then step to the end of what the token numbered `first` began."""
        self._keep(error.diagnostic)
        skipped = [token.text for token in self.tokens[first : self.index]]
        braces = skipped.count("{") - skipped.count("}")
        parentheses = skipped.count("(") - skipped.count(")")
        while self.token.kind is not TokenKind.END and not self.is_new_declaration():
            text = self.token.text
            if text == "}" and braces <= 0:
                return
            braces += _BRACES.get(text, 0)
            parentheses += _PARENTHESES.get(text, 0)
            self.advance()
            is_end = text == ";" and (parentheses <= 0 or self.is_line_start())
            is_end |= text == "}" and self.token.text not in _INSIDE_STATEMENT
            if braces <= 0 and is_end:
                self.accept(";")
                return
