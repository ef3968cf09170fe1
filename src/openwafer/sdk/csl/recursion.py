"""Trees may be deep: a long sum is one, and so is a chain of calls at compile time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from openwafer.diagnostics import error

_LIMIT: Final = 100_000
DISPATCHED: Final = 30_000
"""Calls through functools.singledispatch take the C stack, which ends without a warning."""


@contextmanager
def deep_recursion(limit: int = _LIMIT) -> Iterator[None]:
    """Let functions call themselves for each level of a tree.

    Raises OpenwaferError when even that is not enough.
    """
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(max(old, limit))
    try:
        yield
    except RecursionError:
        raise error(
            "csl-too-deep",
            "an expression of the program has too many levels",
            help="name inner parts as a const or function",
        ) from None
    finally:
        sys.setrecursionlimit(old)
