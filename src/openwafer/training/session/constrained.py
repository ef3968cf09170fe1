"""Constrained decoding: lines that no text can go on from are drawn again."""

import codeop
import warnings
from collections.abc import Callable, Sequence
from typing import Final

Constraint = Callable[[str], bool]
"""Whether a text, which ends with a line, can be the beginning of one that is wanted."""
MOST_DRAWS: Final = 32
"""Of one line, before its text ends in front of it."""

GOES_ON: Final = ("(", "_", "'", '"')
"""What a line may go on with behind a backslash: an expression, a name, the end of a string."""


def can_become_python(text: str) -> bool:
    """Whether Python reads a text, or would with more lines behind it."""
    for joint in ("\\\n", "\\\r\n"):
        if text.endswith(joint):
            return any(_is_begun(text.removesuffix(joint) + more) for more in GOES_ON)
    return _is_begun(text)


def _is_begun(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            # Such as one for an escape that strings do not know: it is no mistake.
            warnings.simplefilter("ignore")
            codeop.compile_command(text, symbol="exec")
    except SyntaxError as cause:
        # The function around may give it a value in a later line.
        return str(cause.msg).startswith("no binding for nonlocal")
    # Null characters, numbers too large, and brackets too deep.
    except (ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


class Lines:
    """The lines of one text under way.

    Args:
        constraint: that the text up to each line end has to meet.
        decode: the text of tokens.
        prompt: the tokens in front.

    Attributes:
        num_redrawn: lines that were drawn again.
        is_stuck: whether a line has been drawn as often as it may be.
    """

    def __init__(
        self, constraint: Constraint, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]
    ) -> None:
        self._constraint = constraint
        self._decode = decode
        self._prompt = prompt
        self._num_lines = decode(prompt).count("\n")
        self._num_kept = 0
        self._num_draws = 0
        self.num_redrawn = 0

    @property
    def is_stuck(self) -> bool:
        return self._num_draws == MOST_DRAWS

    def num_kept(self, written: Sequence[int]) -> int:
        """How many of the tokens written so far stay; the others are of a line to draw again."""
        text = self._decode([*self._prompt, *written])
        num_lines = text.count("\n")
        if num_lines == self._num_lines:
            return len(written)
        if self._constraint(text[: text.rfind("\n") + 1]):
            self._num_lines, self._num_kept, self._num_draws = num_lines, len(written), 0
        else:
            self._num_draws += 1
            self.num_redrawn += 1
        return self._num_kept
