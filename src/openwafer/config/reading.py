"""Typed values from a document: the annotation of each field says what its node must hold."""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import TypeVar, Union, get_args, get_origin, get_type_hints

from openwafer.config.arguments import PathLike, path_of
from openwafer.config.byte_size import Bytes, parse_bytes
from openwafer.config.document import (
    Entry,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    assign,
    describe,
    read,
)
from openwafer.config.expectation import (
    expectation,
    expectation_of_any,
    list_choices,
    wrong_type,
)
from openwafer.diagnostics import Diagnostic, OpenwaferError, did_you_mean, error
from openwafer.source import SourceText, Span

Config = TypeVar("Config")
Value = TypeVar("Value")


class InvalidFieldError(ValueError):
    """Raised by a dataclass's ``__post_init__`` to have the place of one field pointed at."""

    def __init__(self, field: str, message: str, *, help: str = "") -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.help = help


def require_positive(config: object, *names: str) -> None:
    """Refuse fields of a dataclass that are 0 or below; None is a field not given."""
    for name in names:
        found = getattr(config, name)
        if found is not None and not found > 0:
            raise InvalidFieldError(name, f"expected above 0, found {found}")


def load(path: PathLike, cls: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Read the YAML file `path` as a `cls`; see ``parse``. Relative paths stay as written.

    Raises OpenwaferError, config-file, when the file cannot be read.
    """
    return parse(source_of(path), cls, overrides)


def source_of(path: PathLike) -> SourceText:
    """The text of a YAML file.

    Raises:
        OpenwaferError: ``config-file`` when the file cannot be read.
    """
    path = path_of(path, "path")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as cause:
        message = f"cannot read {path}: {cause.strerror}"
        raise error("config-file", message, help="give the path of a YAML file") from cause
    except UnicodeDecodeError as cause:
        message = (
            f"{path} is not UTF-8 text: byte {cause.start} is 0x{cause.object[cause.start]:02x}"
        )
        raise error("config-file", message, help="save it as UTF-8") from cause
    return SourceText(str(path), text)


def parse(source: SourceText, cls: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Read `source` as a `cls`, with each override ``a.b=value`` on top, the last one winning.

    Raises OpenwaferError with every problem at once, each with its place: config-syntax,
    config-duplicate-key, config-unknown-key, config-missing-key, config-type, config-value,
    config-override.
    """
    root = read(source)
    place = Span(source, 0, 0)
    if isinstance(root, ScalarNode) and root.value is None:
        root = MappingNode(place, {})
    if not isinstance(root, MappingNode):
        raise wrong_type("a mapping", root)
    for assignment in overrides:
        root = assign(root, assignment)
    return _read_dataclass(root, cls, place)


def _read(node: Node, kind: object, place: Span) -> object:
    """Read `node` as a value of the annotation `kind`; `place` is shown for a whole mapping."""
    if kind is object:
        return plain(node)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(node, kind, place)
    if get_origin(kind) in (Union, UnionType):
        return _read_union(node, get_args(kind), place)
    if get_origin(kind) is tuple:
        return _read_tuple(node, get_args(kind))
    if get_origin(kind) in (dict, Mapping):
        return _read_mapping(node, get_args(kind)[1])
    return _read_scalar(node, kind)


def _read_dataclass(node: Node, cls: type[Config], place: Span) -> Config:
    if not isinstance(node, MappingNode):
        raise wrong_type("a mapping", node)
    assert dataclasses.is_dataclass(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    missing = [n for n, f in fields.items() if _is_required(f) and n not in node.entries]
    hints = _hints(cls)
    elsewhere: Mapping[str, str] = getattr(cls, "KEYS_ELSEWHERE", {})
    known = {key: entry for key, entry in node.entries.items() if key in fields}

    def refuse(key: str, entry: Entry) -> Config:
        raise unknown_key(key, entry, fields, help=elsewhere.get(key, ""))

    def require_all() -> None:
        if missing:
            raise missing_keys(missing, place)

    def read_known() -> Config:
        readers: list[Callable[[], object]] = [
            functools.partial(_read, one.value, hints[key], one.place) for key, one in known.items()
        ]
        *values, _ = gather([*readers, require_all])
        return _construct(cls, dict(zip(known, values, strict=True)), node, place)

    unknown = [(key, entry) for key, entry in node.entries.items() if key not in fields]
    refusals: list[Callable[[], Config]] = [functools.partial(refuse, *one) for one in unknown]
    *_, made = gather([*refusals, read_known])
    return made


def read_arguments(
    node: Node, function: Callable[..., object], place: Span, given: Collection[str] = ()
) -> dict[str, object]:
    """Read a mapping as keyword arguments of a function, by the names and types of its parameters.

    A type that no YAML value stands for takes any value; a function with ``**options`` any key.

    Args:
        node: the mapping, or nothing at all.
        function: what is to be called.
        place: shown where a key is missing.
        given: parameters that the caller has values for.

    Raises:
        OpenwaferError: with every problem at once, as :func:`parse`.
    """
    if isinstance(node, ScalarNode) and node.value is None:
        node = MappingNode(place, {})
    if not isinstance(node, MappingNode):
        raise wrong_type("a mapping", node)
    named = [p for p in inspect.signature(function).parameters.values() if p.name not in given]
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in named)
    known = {p.name: p for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    hints = _hints_of(function)
    missing = [n for n, p in known.items() if p.default is p.empty and n not in node.entries]

    def read_entry(key: str, entry: Entry) -> object:
        if key not in known and not takes_all:
            raise unknown_key(key, entry, known)
        kind = hints.get(key, object)
        return _read(entry.value, kind if _is_readable(kind) else object, entry.place)

    def require_all() -> None:
        if missing:
            raise missing_keys(missing, place)

    readers: list[Callable[[], object]] = [
        functools.partial(read_entry, *one) for one in node.entries.items()
    ]
    *values, _ = gather([*readers, require_all])
    return dict(zip(node.entries, values, strict=True))


def read_value(entry: Entry, kind: object) -> object:
    """Read what stands under a key as a value of the annotation `kind`.

    Raises:
        OpenwaferError: ``config-type`` for another one.
    """
    return _read(entry.value, kind, entry.place)


def unknown_key(key: str, entry: Entry, known: Iterable[str], *, help: str = "") -> OpenwaferError:
    """The error for a key that is none of `known`; without `help` it names the nearest of them."""
    help = help or did_you_mean(key, known)
    return error("config-unknown-key", f"no key '{key}' here", span=entry.key_span, help=help)


def missing_keys(names: Iterable[str], place: Span, *, help: str = "") -> OpenwaferError:
    """The error for keys that are not where they have to be."""
    message = f"missing here: {', '.join(names)}"
    return error("config-missing-key", message, span=place, help=help)


def _hints_of(function: Callable[..., object]) -> Mapping[str, object]:
    called = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return get_type_hints(called, include_extras=True)
    except (NameError, TypeError):  # names that only a type checker imports
        return {}


def _is_readable(kind: object) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return all(map(_is_readable, get_args(kind)))
    if get_origin(kind) is tuple:
        return all(_is_readable(item) for item in get_args(kind) if item is not ...)
    scalars = (object, bool, int, float, str, Path, NoneType)
    return kind in scalars or bool(list_choices(kind)) or dataclasses.is_dataclass(kind)


def _construct(
    cls: type[Config], values: dict[str, object], node: MappingNode, place: Span
) -> Config:
    try:
        return cls(**values)
    except InvalidFieldError as cause:
        span = node.entries[cause.field].place if cause.field in node.entries else place
        raise error("config-value", str(cause), span=span, help=cause.help) from cause
    except ValueError as cause:
        raise error("config-value", str(cause), span=place) from cause


def _is_required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _read_union(node: Node, members: tuple[object, ...], place: Span) -> object:
    if isinstance(node, ScalarNode) and node.value is None and NoneType in members:
        return None
    fitting = [member for member in members if _has_shape(member, node)]
    if not fitting:
        raise wrong_type(expectation_of_any(members), node)
    if isinstance(node, MappingNode):
        return _read(node, _pick(node, fitting), place)
    problems = []
    for member in fitting:
        try:
            return _read(node, member, place)
        except OpenwaferError as found:
            problems.append(found)
    is_misfit = isinstance(node, ScalarNode) and problems[0].diagnostics[0].code == "config-type"
    if len(problems) == 1 and not is_misfit:
        raise problems[0]
    kinds = [member for member in members if member is not NoneType]
    raise wrong_type(expectation_of_any(kinds), node)


def _has_shape(kind: object, node: Node) -> bool:
    """Whether `kind` is written the way `node` is: as a mapping, a list or one value."""
    if kind is object:
        return True
    if dataclasses.is_dataclass(kind) or get_origin(kind) in (dict, Mapping):
        return isinstance(node, MappingNode)
    if get_origin(kind) is tuple:
        return isinstance(node, ListNode)
    return kind is not NoneType and isinstance(node, ScalarNode)


def _pick(node: MappingNode, members: list[object]) -> object:
    """The member that `node` means: by a Literal field that all have, else by its keys."""
    schemas = [_hints(member) for member in members]
    for key, entry in node.entries.items():
        choices = [list_choices(schema.get(key)) for schema in schemas]
        if all(choices):
            chosen = _read_choice(entry.value, tuple(itertools.chain(*choices)))
            return next(m for m, own in zip(members, choices, strict=True) if chosen in own)
    num_known = [len(node.entries.keys() & schema.keys()) for schema in schemas]
    index = num_known.index(max(num_known))
    _refuse_mixture(node, schemas[index], frozenset().union(*schemas))
    return members[index]


def _refuse_mixture(
    node: MappingNode, chosen: Mapping[str, object], of_all: frozenset[str]
) -> None:
    beside = ", ".join(f"'{key}'" for key in node.entries if key in chosen)
    for key, entry in node.entries.items():
        if key in of_all - chosen.keys():
            raise error(
                "config-unknown-key",
                f"'{key}' does not go together with {beside}",
                span=entry.key_span,
                help=f"leave out either; --set replaces all of them where it sets the whole "
                f"mapping: {{{key}: ...}}",
            )


def _hints(kind: object) -> Mapping[str, object]:
    return get_type_hints(kind, include_extras=True) if isinstance(kind, type) else {}


def _read_tuple(node: Node, items: tuple[object, ...]) -> tuple[object, ...]:
    if not isinstance(node, ListNode):
        raise wrong_type("a list", node)
    kinds = items
    if items[1:] == (...,):
        kinds = items[:1] * len(node.items)
    if len(kinds) != len(node.items):
        raise wrong_type(f"a list of {len(kinds)}", node, f"a list of {len(node.items)}")
    pairs = zip(node.items, kinds, strict=True)
    return tuple(gather(functools.partial(_read, item, kind, item.span) for item, kind in pairs))


def _read_mapping(node: Node, kind: object) -> dict[str, object]:
    if not isinstance(node, MappingNode):
        raise wrong_type("a mapping", node)
    entries = node.entries.values()
    values = gather(functools.partial(_read, e.value, kind, e.place) for e in entries)
    return dict(zip(node.entries, values, strict=True))


def gather(readers: Iterable[Callable[[], Value]]) -> list[Value]:
    """Results of all readers, or one error with the problems of all.

    Raises:
        OpenwaferError: see above.
    """
    problems: list[Diagnostic] = []
    values = []
    for reader in readers:
        try:
            values.append(reader())
        except OpenwaferError as found:
            problems += found.diagnostics
    if problems:
        raise OpenwaferError(*problems)
    return values


def plain(node: Node) -> object:
    """What a node holds, as dicts, lists and values."""
    match node:
        case MappingNode():
            return {key: plain(entry.value) for key, entry in node.entries.items()}
        case ListNode():
            return [plain(item) for item in node.items]
        case ScalarNode():
            return node.value


def _read_scalar(node: Node, kind: object) -> object:
    choices = list_choices(kind)
    if choices:
        return _read_choice(node, choices)
    value = node.value if isinstance(node, ScalarNode) else node
    if kind == Bytes and isinstance(value, str | int) and not isinstance(value, bool):
        return _read_bytes(node, str(value))
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is kind:
        return value
    raise wrong_type(expectation(kind), node)


def _read_bytes(node: Node, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as cause:
        raise error(
            "config-value", str(cause), span=node.span, help="write it as in 512MB, 2GiB or 4096"
        ) from cause


def _read_choice(node: Node, choices: tuple[object, ...]) -> object:
    values = [getattr(choice, "value", choice) for choice in choices]
    written = node.value if isinstance(node, ScalarNode) else node
    for choice, value in zip(choices, values, strict=True):
        if type(written) is type(value) and written == value:
            return choice
    help = did_you_mean(str(written), map(str, values)) if isinstance(node, ScalarNode) else ""
    raise error("config-value", f"no such choice: {describe(node)}", span=node.span, help=help)
