"""What callers in Python give: paths, sizes and choices, in each form that people write them."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias, TypeVar

from openwafer.config.byte_size import parse_bytes
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
        raise error(
            "argument-choice",
            f"{name}: no such choice: {value!r}",
            help=did_you_mean(str(value), list(choices)),
        ) from cause
