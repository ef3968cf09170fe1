"""What becomes of vector operations that go over the end of an array."""

import os
from typing import Final

from openwafer.diagnostics import Severity, did_you_mean, error

OVERRUNS_VARIABLE: Final = "OPENWAFER_OVERRUNS"
"""Environment variable that says whether an overrun is a warning or an error."""
_KINDS: Final = (str(Severity.WARNING), str(Severity.ERROR))


def stops_at_overrun_by_environment() -> bool:
    """Whether the environment makes an overrun an error; it is a warning otherwise.

    Raises OpenwaferError when the environment says neither.
    """
    name = os.environ.get(OVERRUNS_VARIABLE, Severity.WARNING)
    if name not in _KINDS:
        raise error(
            "overruns-unknown",
            f"{OVERRUNS_VARIABLE} is {name!r}",
            help=did_you_mean(name, _KINDS),
        )
    return name == Severity.ERROR
