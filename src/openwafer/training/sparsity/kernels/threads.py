"""Threads that enter compiled code: those of torch, so that two pools never share the cores."""

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

GRAIN: Final = 1 << 15
"""Least work that is worth a thread; torch's own."""

Enter = Callable[[int, int, int], None]
"""Lets so many threads (the third) enter code at an address (the first) with one argument."""

_team_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_entry_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Process:
    """Whether this process was forked, since torch's pool waits for threads that stayed behind."""

    is_forked = False


def _note_fork() -> None:
    _Process.is_forked = True


os.register_at_fork(after_in_child=_note_fork)


def run(entry: Any, record: NDArray[np.void], num_items: int, num_threads: int) -> None:
    """Let so many threads take the items of an entry. What comes out is the same for any number."""
    record["next_item"] = record["next_thread"] = 0
    record["num_items"] = num_items
    if num_threads == 1:
        _entry_type(entry.address)(record.ctypes.data)
    else:
        _team()(entry.address, record.ctypes.data, num_threads)


def num_threads_of(num_items: int, work: int) -> int:
    """Threads for so many items, and so many numbers that these touch or multiply.

    As many as torch uses, no more than items, and one where there is little work or the process was
    forked.
    """
    most = 1 if _Process.is_forked else torch.get_num_threads()
    return max(1, min(most, num_items, work // GRAIN))


@functools.cache
def _team() -> Enter:
    """The pool of torch's own OpenMP, or one of ours where torch was built on another."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        begin = ctypes.cast(ctypes.CDLL(str(library)).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return pool_of_our_own
    team = _team_type(begin or 0)
    return lambda address, argument, num_threads: team(address, argument, num_threads, 0)


def pool_of_our_own(address: int, argument: int, num_threads: int) -> None:
    """Enter by threads of Python, which leave its lock while they are in compiled code."""
    entry = _entry_type(address)
    others = [_pool().submit(entry, argument) for _ in range(num_threads - 1)]
    entry(argument)
    for other in others:
        other.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="openwafer-sparse")
