"""Patterns of sparse causal attention, and their names."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeGuard

from openwafer.diagnostics import error

BLOCKS_OF_WINDOW: Final = 2
LEAST_BLOCK: Final = 32
"""Shorter ones have fewer keys that some of their queries do not see, and more calls."""


@dataclass(frozen=True)
class Pattern:
    """Which keys a query sees, among those that are not behind it.

    Attributes:
        block: tokens; queries of a block see the same keys, but for those behind them.
        before: blocks before its own.
        first: blocks of the sequence, from its beginning.
        window: how far back it sees, itself included; ``None`` as far as its keys go.
        sees_last: whether the last token of every block before its own, too.
    """

    block: int
    before: int
    first: int = 0
    window: int | None = None
    sees_last: bool = False


def sliding(window: int) -> Pattern:
    """A query sees itself and the ``window - 1`` tokens before it."""
    block = max(window // BLOCKS_OF_WINDOW, LEAST_BLOCK)
    return Pattern(block, before=-(-(window - 1) // block), window=window)


def strided(stride: int) -> Pattern:
    """A query sees its stretch of ``stride`` tokens, and the last token of each one before.

    With a stride of sqrt(n) that is n sqrt(n) work (the fixed pattern of arXiv 1904.10509).
    """
    return Pattern(stride, before=0, sees_last=True)


_KINDS: Final[dict[str, tuple[Callable[..., Pattern], tuple[int, ...]]]] = {
    "sliding": (sliding, (1,)),
    "strided": (strided, (1,)),
    "blocks": (Pattern, (1, 0, 0)),
}
"""By name: what makes the pattern, and the least of each of its numbers."""
_NAME: Final = re.compile(rf"({'|'.join(_KINDS)})-([-\w]*)")


def is_sparse_attention(name: object) -> TypeGuard[str]:
    """Whether it is meant as the name of a pattern."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def pattern_of(name: str) -> Pattern:
    """The pattern of a name: ``sliding-WINDOW``, ``strided-STRIDE``, ``blocks-SIZE-BEFORE-FIRST``.

    Raises:
        OpenwaferError: ``attention-pattern``.
    """
    found = _NAME.fullmatch(name)
    make, least = _KINDS[found[1]] if found else (None, ())
    numbers = [int(one) if one.isdecimal() else -1 for one in found[2].split("-")] if found else []
    is_right = len(numbers) == len(least) and all(map(int.__ge__, numbers, least))
    if make is None or not is_right:
        raise error(
            "attention-pattern",
            f"no sparse attention is called {name!r}",
            help="write sliding-WINDOW, strided-STRIDE or blocks-SIZE-BEFORE-FIRST with whole "
            "numbers: tokens, tokens, and tokens of a block, blocks before it, and first blocks",
        )
    return make(*numbers)
