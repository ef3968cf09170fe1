"""What callers in Python give: paths, sizes and choices, in each form that people write them."""

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from openwafer.config.byte_size import Bytes, parse_bytes
from openwafer.diagnostics import did_you_mean, error

PathLike: TypeAlias = str | os.PathLike[str]
"""A path, as text or as an object."""
Size: TypeAlias = str | int | float
"""Bytes: a whole number, or text such as 2GiB."""
Choice = TypeVar("Choice", bound=StrEnum)


def path_of(value: PathLike, name: str) -> Path:
    """The path that an argument gives; a leading ``~`` is the user's home.

    Raises:
        OpenwaferError: ``argument-path``.
    """
    try:
        return Path(value).expanduser()
    except TypeError as cause:
        raise error(
            "argument-path",
            f"{name}: expected a path, found {value!r}",
            help="give a str or a pathlib.Path",
        ) from cause


def bytes_of(value: Size, name: str) -> int:
    """The bytes that an argument gives.

    Raises:
        OpenwaferError: ``argument-bytes`` for a fraction of a byte, a negative number, another
            type, or text that names no size.
    """
    found: object = value
    if isinstance(value, str):
        try:
            found = parse_bytes(value)
        except ValueError as cause:
            raise _no_size(f"{name}: {cause}") from cause
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise _no_size(f"{name}: expected a number of bytes, found {value!r}")
    if found < 0 or found != found // 1:
        raise _no_size(f"{name}: {value!r} is not a whole number of bytes")
    return int(found)


def _no_size(message: str) -> Exception:
    return error("argument-bytes", message, help="write it as '2GiB', '512MB' or 4096")


def choice_of(value: str, choices: type[Choice], name: str) -> Choice:
    """The member of an enumeration that an argument gives, itself or by its value.

    Raises:
        OpenwaferError: ``argument-choice``.
    """
    try:
        return choices(value)
    except ValueError as cause:
        raise _no_choice(value, choices, name) from cause


def _no_choice(value: object, known: Iterable[str], name: str) -> Exception:
    return error(
        "argument-choice",
        f"{name}: no such choice: {value!r}",
        help=did_you_mean(str(value), list(known)),
    )


def convert_fields(settings: object) -> None:
    """Give the fields of a dataclass the types that they name, for its ``__post_init__``.

    Those of type ``Path``, ``Bytes`` or an enumeration, and of unions of one of these with others,
    which take text as that one; several paths or texts, of which one may stand alone; values of
    mappings. Literals are refused where they are none of those that are named.

    Raises:
        OpenwaferError: ``argument-path``, ``argument-bytes``, ``argument-choice``,
            ``argument-text``, ``argument-mapping``.
    """
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        converted = _converted(value, kind, name)
        if converted is not value:
            object.__setattr__(settings, name, converted)


def _text_of(value: PathLike, name: str) -> str:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise error(
        "argument-text", f"{name}: expected texts, found {value!r} among them", help="give str"
    )


def _mapped(value: object, kind: object, name: str) -> Mapping[object, object]:
    if not isinstance(value, Mapping):
        raise error(
            "argument-mapping",
            f"{name}: expected a mapping, found {value!r}",
            help="give a dict",
        )
    return {key: _converted(each, kind, f"{name}[{key!r}]") for key, each in value.items()}


def _converted(value: object, kind: object, name: str) -> object:
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    kinds = [member for member in members if member is not NoneType]
    if value is None and len(kinds) < len(members):
        return None
    if get_args(kinds[0]) in ((Path, ...), (str, ...)):
        several = (value,) if isinstance(value, str | os.PathLike) else value
        one = path_of if Path in get_args(kinds[0]) else _text_of
        return tuple(one(each, name) for each in several)  # type: ignore[attr-defined]
    if get_origin(kinds[0]) is Mapping:
        return _mapped(value, get_args(kinds[0])[1], name)
    for each in kinds:
        if len(kinds) > 1 and not isinstance(value, str | os.PathLike):
            continue
        if each is Path:
            return path_of(value, name)  # type: ignore[arg-type]
        if each == Bytes:
            return bytes_of(value, name)  # type: ignore[arg-type]
        if isinstance(each, type) and issubclass(each, StrEnum):
            return choice_of(value, each, name)  # type: ignore[arg-type]
        if get_origin(each) is Literal and value not in get_args(each):
            raise _no_choice(value, get_args(each), name)
    return value
