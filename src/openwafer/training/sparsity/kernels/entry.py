"""Compiled code that threads enter together: each takes items until none is left.

An entry is told everything by one record, which its threads share. Which thread takes an item
changes nothing in what comes out.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import cfunc, from_dtype, njit, types
from numba.extending import intrinsic

from openwafer.training.sparsity.kernels.emission import WORD

COUNTERS: Final = ("next_item", "next_thread")
HEAD: Final = ("counters", "taken", "num_items")


def record_of(names: Sequence[str]) -> "np.dtype[np.void]":
    """What an entry is told: items, and 64-bit sizes and addresses.

    `counters` is the address of what all threads count together, `taken` counts items (and once
    that none was left) for those threads only that are told this record.
    """
    return np.dtype([(name, np.int64) for name in (*HEAD, *names)])


def entry(record: "np.dtype[np.void]") -> Callable[[Callable[[Any], None]], Any]:
    """Compile a function of a pointer to such a record; its machine code is kept beside it."""
    return cfunc(types.void(types.CPointer(from_dtype(record))), cache=True)  # type: ignore[no-any-return]


def part(function: Callable[..., Any]) -> Any:
    """Compile a function as a part of entries, anew for each constant that one passes."""
    return njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def _count(builder: Any, cells: Any, number: int) -> Any:
    cell = builder.gep(cells, [WORD(number)])
    return builder.atomic_rmw("add", cell, WORD(1), "monotonic")


def _counter(name: str) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        told = builder.bitcast(args[0], WORD.as_pointer())
        if name == "next_item":
            _count(builder, told, HEAD.index("taken"))
        address = builder.load(builder.gep(told, [WORD(HEAD.index("counters"))]))
        counters = builder.inttoptr(address, WORD.as_pointer())
        return _count(builder, counters, COUNTERS.index(name))

    return generate


@intrinsic
def take_item(_typing: Any, told: Any) -> Any:
    """The number of an item that no other thread gets."""
    return types.int64(told), _counter("next_item")


@intrinsic
def take_number(_typing: Any, told: Any) -> Any:
    """A number that no other thread gets, from 0 on."""
    return types.int64(told), _counter("next_thread")


def _digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


STAMP: Final = _digest()
"""Changes with the text of this room.

numba looks at the time of an entry's file only; what an entry captures is part of its key, too.
"""
