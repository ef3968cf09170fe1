"""What a config field may hold, in the words of an error message."""

import dataclasses
from collections.abc import Iterable, Mapping
from enum import EnumType
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

from openwafer.config.byte_size import Bytes
from openwafer.config.document import Node, ScalarNode, describe
from openwafer.diagnostics import OpenwaferError, error


def list_choices(kind: object) -> tuple[object, ...]:
    """What a Literal or an Enum lets one write; nothing for any other type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(kind) if isinstance(kind, EnumType) else ()


_EXPECTATIONS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    Bytes: "a byte size such as 2GiB",
    NoneType: "nothing",
}


def expectation_of_any(kinds: Iterable[object]) -> str:
    """What to write for one of `kinds`, each wording once."""
    return " or ".join(dict.fromkeys(map(expectation, kinds)))


def expectation(kind: object) -> str:
    """What to write for `kind`, in words; TypeError for a type that no YAML value stands for."""
    if dataclasses.is_dataclass(kind) or get_origin(kind) in (dict, Mapping):
        return "a mapping"
    if get_origin(kind) is tuple:
        return "a list"
    choices = list_choices(kind)
    if choices:
        return f"one of {', '.join(str(getattr(choice, 'value', choice)) for choice in choices)}"
    if kind not in _EXPECTATIONS:
        raise TypeError(f"a config field cannot have the type {kind}")
    return _EXPECTATIONS[kind]


def wrong_type(expected: str, node: Node, found: str = "") -> OpenwaferError:
    """The error for a node that holds something else than `expected`."""
    message = f"expected {expected}, found {found or describe(node)}"
    is_number = isinstance(node, ScalarNode) and not isinstance(node.value, str | None)
    help = f'write it in quotes: "{node.span.text}"' if is_number and "text" in expected else ""
    return error("config-type", message, span=node.span, help=help)
