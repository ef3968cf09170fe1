"""YAML to frozen dataclasses and back; every mistake of a file is reported with its place.

A dataclass is the schema: field names are the keys, a field without default is required, and a
``ValueError`` from ``__post_init__`` is reported where the values stand. Fields may be ``bool``,
``int``, ``float``, ``str``, ``Path``, ``Bytes``, an ``Enum``, a ``Literal``, a dataclass,
``tuple[X, ...]``, ``tuple[X, Y]``, ``dict[str, X]``, unions of these and None, and ``object`` for
values that another library judges.

Scalars are those of YAML 1.2: ``no`` and ``on`` are text, ``1e-3`` is a number.
"""

from openwafer.config.arguments import (
    PathLike,
    Size,
    bytes_of,
    choice_of,
    convert_fields,
    path_of,
)
from openwafer.config.byte_size import Bytes, exact_bytes, parse_bytes
from openwafer.config.reading import InvalidFieldError, load, parse
from openwafer.config.writing import settings_of, to_flow, to_yaml

__all__ = [
    "Bytes",
    "InvalidFieldError",
    "PathLike",
    "Size",
    "bytes_of",
    "choice_of",
    "convert_fields",
    "exact_bytes",
    "load",
    "parse",
    "parse_bytes",
    "path_of",
    "settings_of",
    "to_flow",
    "to_yaml",
]
