"""Modes of a session, as scripts name them."""

from typing import Final

from openwafer.diagnostics import did_you_mean, error

__all__ = ["EVAL", "TRAIN", "get_modes", "is_valid"]

TRAIN: Final = "train"
EVAL: Final = "eval"


def get_modes() -> tuple[str, ...]:
    """All modes that a session knows."""
    return TRAIN, EVAL


def is_valid(mode: object) -> bool:
    """Whether a session knows the mode."""
    return mode in get_modes()


def require_mode(mode: object) -> str:
    """The mode.

    Raises:
        OpenwaferError: ``session-mode``.
    """
    for known in get_modes():
        if mode == known:
            return known
    raise error(
        "session-mode",
        f"a session knows no mode {mode!r}",
        help=did_you_mean(str(mode), get_modes()),
    )
