"""Columns of a run as a file: what the page reads, whole or in parts.

The file is of the safetensors format, which a page reads in a few lines: a length, a head of JSON,
and arrays one behind the other; docs/formats/openwafer-view.md says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from openwafer import json_files
from openwafer.atomic_file import write_bytes
from openwafer.diagnostics import error
from openwafer.json_files import JsonMistake

FORMAT: Final = "openwafer-view"
VERSION: Final = 1
Array = NDArray[Any]


@dataclass(frozen=True)
class Columns:
    """A run for the page.

    Attributes:
        head: what is said in words and lists; plain values that JSON has.
        arrays: by name; docs/formats/openwafer-view.md says which there are.
    """

    head: Mapping[str, object]
    arrays: Mapping[str, Array] = field(repr=False)

    def content(self, mark: str = "") -> bytes:
        """The bytes of a file, in which each array lies as a multiple of its element's length.

        Args:
            mark: says what the columns were made of, for :func:`mark_in`.
        """
        told = {"format": FORMAT, "version": str(VERSION), "mark": mark}
        told["head"] = json_files.encode(self.head).decode()
        small = {name: np.ascontiguousarray(_fitting(one)) for name, one in self.arrays.items()}
        return save(small, told)

    def write(self, path: Path) -> None:
        """Write the file atomically. Raises OSError where the disk refuses."""
        write_bytes(path, self.content())


def mark_in(path: Path) -> str:
    """What a file says that its columns were made of; nothing for one that was exported.

    Raises OpenwaferError where it is none of :class:`Columns`, or is damaged.
    """
    try:
        with safe_open(path, "numpy") as file:
            told: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError) as cause:
        raise error(
            "view-damaged",
            f"{path} is damaged, or no {FORMAT}: {cause}",
            help="export it again: openwafer view RUN --export FILE.view",
        ) from cause
    found = told.get("format"), told.get("version")
    if found != (FORMAT, str(VERSION)):
        raise error(
            "view-version",
            f"{path} is {found[0]} of version {found[1]}, and this program shows {FORMAT} of"
            f" version {VERSION}",
            help="export it again: openwafer view RUN --export FILE.view",
        )
    try:
        json_files.decode(dict[str, object], told.get("head", ""))
    except JsonMistake as cause:
        raise error("view-damaged", f"{path} is damaged: its head is {cause}") from cause
    return told.get("mark", "")


def sorted_by(keys: Array, num_keys: int, *then: Array) -> tuple[Array, Array]:
    """The order by keys from 0 on, then by others; and where each key's rows begin, one more."""
    order = np.lexsort((*reversed(then), keys))
    return order, np.searchsorted(keys[order], np.arange(num_keys + 1))


def _fitting(array: Array) -> Array:
    """The same with the shortest elements that a page has arrays of."""
    if array.dtype.kind != "b" and array.dtype.kind != "f":
        least, most = int(array.min(initial=0)), int(array.max(initial=0))
        for kind in (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.uint32):
            info = np.iinfo(kind)
            if info.min <= least and most <= info.max:
                return array.astype(kind)
        return array.astype(np.float64)
    return array.astype(np.uint8 if array.dtype.kind == "b" else np.float64)
