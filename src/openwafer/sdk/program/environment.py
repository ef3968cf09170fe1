"""Environment variables of runs: those that more than one floor looks at, and how one is read."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from openwafer.diagnostics import did_you_mean, error

FINAL_STATE_VARIABLE: Final = "OPENWAFER_FINAL_STATE"
"""Folder that each run writes its final state to, under the next number."""
CHECK_VARIABLE: Final = "OPENWAFER_CHECK"
"""Whether runs look for mistakes of their programs: ``off``, ``warning``, ``error`` or ``wrap``."""


def choice(variable: str, words: Iterable[str], code: str, remark: str = "") -> str:
    """What a variable of the environment says: one of some words, the first where it is not set.

    Args:
        code: of the OpenwaferError that is raised for another word.
        remark: what its message adds.
    """
    known = [str(word) for word in words]
    word = os.environ.get(variable, known[0])
    if word not in known:
        more = f", and {remark}" if remark else ""
        raise error(code, f"{variable} is {word!r}{more}", help=did_you_mean(word, known))
    return word


def next_path(variable: str, suffix: str) -> Path | None:
    """The next number in the folder that a variable of the environment names; None without one.

    Args:
        suffix: of the files there. Those that are still written, whose names begin with a dot, have
            numbers, too.

    Raises OpenwaferError where the folder cannot be made.
    """
    name = os.environ.get(variable)
    if name is None:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise error(
            "run-folder",
            f"{variable} is {name!r}, where no folder can be made: {cause.strerror}",
            help="name a folder that is there, or that may be made",
        ) from cause
    names = (path.name.lstrip(".").partition(".")[0] for path in folder.glob(f"*{suffix}"))
    number = max((int(name) + 1 for name in names if name.isdecimal()), default=0)
    return folder / f"{number:04}{suffix}"
