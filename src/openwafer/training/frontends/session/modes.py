"""Modes of a session, as scripts name them."""

from typing import Final

from openwafer.diagnostics import did_you_mean, error

__all__ = ["EVAL", "EVAL_ALL", "INFERENCE", "TRAIN", "TRAIN_AND_EVAL", "get_modes", "is_valid"]

TRAIN: Final = "train"
EVAL: Final = "eval"
TRAIN_AND_EVAL: Final = "train_and_eval"
EVAL_ALL: Final = "eval_all"
INFERENCE: Final = "inference"
_OF_SESSIONS: Final = (TRAIN, EVAL)


def get_modes() -> tuple[str, ...]:
    """All modes that a script may name; a session is of the first two."""
    return *_OF_SESSIONS, TRAIN_AND_EVAL, EVAL_ALL, INFERENCE


def is_valid(mode: object) -> bool:
    """Whether a script may name the mode."""
    return mode in get_modes()


def require_mode(mode: object) -> str:
    """The mode of a session.

    Raises:
        OpenwaferError: ``session-mode``.
    """
    for known in _OF_SESSIONS:
        if mode == known:
            return known
    raise error(
        "session-mode",
        f"a session knows no mode {mode!r}",
        help=did_you_mean(str(mode), _OF_SESSIONS),
    )
