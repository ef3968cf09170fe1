"""A YAML text as a tree of nodes that know their place, and assignments on top of it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error
from openwafer.source import SourceText, Span

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class ScalarNode:
    """One value."""

    span: Span
    value: Scalar


@dataclass(frozen=True)
class ListNode:
    """Values in order."""

    span: Span
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Entry:
    """A key's place and its value."""

    key_span: Span
    value: "Node"

    @property
    def place(self) -> Span:
        """Where to point at for this entry: a mapping is too long to underline."""
        return self.key_span if isinstance(self.value, MappingNode) else self.value.span


@dataclass(frozen=True)
class MappingNode:
    """Entries by key, in the order of the text."""

    span: Span
    entries: Mapping[str, Entry]


Node = ScalarNode | ListNode | MappingNode


def read(source: SourceText, start: int = 0) -> Node:
    """Read the YAML value of `source` from offset `start`; nothing at all reads as null.

    Raises OpenwaferError: config-syntax, config-duplicate-key (all of them at once).
    """
    try:
        root = yaml.compose(source.text[start:], Loader=_Loader)
    except yaml.MarkedYAMLError as cause:
        raise _syntax_error(source, start, cause) from cause
    except yaml.reader.ReaderError as cause:
        at = start + cause.position
        span = Span(source, at, at + 1)
        message = f"the character U+{ord(span.text):04X} is not allowed in YAML"
        raise error("config-syntax", message, span=span) from cause
    if root is None:
        return ScalarNode(Span(source, start, start), None)
    converter = _Converter(source, start, [])
    node = converter.convert(root, ())
    if converter.problems:
        raise OpenwaferError(*converter.problems)
    return node


def assign(root: MappingNode, assignment: str) -> MappingNode:
    """Return `root` with one value replaced or added by ``a.b=value``, the value in YAML.

    Raises OpenwaferError: config-override when the form is wrong or `a` holds no mapping.
    """
    source = SourceText("--set", assignment)
    path, equals, _ = assignment.partition("=")
    keys = list(_split(source, path))
    if not equals or not all(span.text for span in keys):
        raise error(
            "config-override",
            f"expected KEY=VALUE, found '{assignment}'",
            span=Span(source, 0, len(assignment)),
            help="write it as in --set optimizer.learning_rate=1e-3",
        )
    return _put(root, keys, read(source, len(path) + 1))


_PLAIN_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?")
_NOT_FINITE = re.compile(r"[-+]?\.inf|\.nan")


def resolve_plain(text: str) -> Scalar:
    """Value of an unquoted scalar by the core schema of YAML 1.2, with 1_000 for 1000."""
    if text in _PLAIN_WORDS:
        return _PLAIN_WORDS[text]
    if _INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


class _Loader(yaml.SafeLoader):
    """Leaves every plain scalar as text: YAML 1.1 reads `no` as false and 1e-3 as text."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - the base class's own way to configure it


_UNTAGGED = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str")}


@dataclass(frozen=True)
class _Converter:
    source: SourceText
    start: int
    problems: list[Diagnostic]

    def convert(self, node: yaml.Node, ancestors: tuple[yaml.Node, ...]) -> Node:
        span = Span(
            self.source, self.start + node.start_mark.index, self.start + node.end_mark.index
        )
        if node.tag not in _UNTAGGED or node in ancestors:
            reason = "an alias stands inside its own anchor" if node in ancestors else "a tag"
            raise error("config-syntax", f"not supported in a config: {reason}", span=span)
        inside = (*ancestors, node)
        if isinstance(node, yaml.MappingNode):
            return MappingNode(span, self._entries(node, inside))
        if isinstance(node, yaml.SequenceNode):
            return ListNode(span, tuple(self.convert(item, inside) for item in node.value))
        assert isinstance(node, yaml.ScalarNode)
        return ScalarNode(span, resolve_plain(node.value) if node.style is None else node.value)

    def _entries(
        self, node: yaml.MappingNode, inside: tuple[yaml.Node, ...]
    ) -> Mapping[str, Entry]:
        entries: dict[str, Entry] = {}
        for key, value in node.value:
            key_node = self.convert(key, inside)
            if not isinstance(key_node, ScalarNode):
                raise error("config-syntax", "a key must be a word", span=key_node.span)
            if key.value in entries:
                self._report_duplicate(key.value, key_node.span, entries[key.value].key_span)
            entries[key.value] = Entry(key_node.span, self.convert(value, inside))
        return entries

    def _report_duplicate(self, key: str, again: Span, first: Span) -> None:
        line = self.source.position(first.start).line
        message, note = f"the key '{key}' stands here twice", f"first on line {line}"
        self.problems.append(
            Diagnostic(Severity.ERROR, "config-duplicate-key", message, again, (note,))
        )


def _syntax_error(source: SourceText, start: int, cause: yaml.MarkedYAMLError) -> OpenwaferError:
    at = start + cause.problem_mark.index if cause.problem_mark else start
    span = Span(source, at, min(at + 1, len(source.text)))
    notes = (cause.context,) if cause.context else ()
    problem = str(cause.problem).replace("'\\x00'", "the end")
    is_alias = cause.context == "while scanning an alias" or "undefined alias" in problem
    help = "a text that begins with * stands in quotes: '*.bias'" if is_alias else ""
    return error("config-syntax", f"not YAML: {problem}", span=span, notes=notes, help=help)


def _split(source: SourceText, path: str) -> Iterator[Span]:
    start = 0
    for key in path.split("."):
        yield Span(source, start, start + len(key))
        start += len(key) + 1


def _put(node: MappingNode, keys: list[Span], value: Node) -> MappingNode:
    first, *rest = keys
    old = node.entries.get(first.text)
    if not rest:
        entry = Entry(first, value)
    elif old is None or old.value == ScalarNode(old.value.span, None):
        entry = Entry(first, _put(MappingNode(first, {}), rest, value))
    elif isinstance(old.value, MappingNode):
        entry = Entry(old.key_span, _put(old.value, rest, value))
    else:
        message = f"'{first.text}' has no keys: it holds {describe(old.value)}"
        raise error("config-override", message, span=first)
    return MappingNode(node.span, {**node.entries, first.text: entry})


def describe(node: Node) -> str:
    """What a node holds, in words for an error message."""
    match node:
        case MappingNode():
            return "a mapping"
        case ListNode():
            return "a list"
        case ScalarNode(value=None):
            return "nothing"
        case ScalarNode(value=bool(value)):
            return str(value).lower()
        case ScalarNode(value=str(value)):
            return f"the text '{value}'"
        case ScalarNode():
            return f"the number {node.span.text}"
