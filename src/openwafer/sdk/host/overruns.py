"""What becomes of vector operations that go over the end of an array."""

from typing import Final

from openwafer.diagnostics import Severity
from openwafer.sdk.program.environment import choice

OVERRUNS_VARIABLE: Final = "OPENWAFER_OVERRUNS"
"""Environment variable that says whether an overrun is a warning or an error."""
_KINDS: Final = (str(Severity.WARNING), str(Severity.ERROR))


def stops_at_overrun_by_environment() -> bool:
    """Whether the environment makes an overrun an error; it is a warning otherwise.

    Raises OpenwaferError when the environment says neither.
    """
    return choice(OVERRUNS_VARIABLE, _KINDS, "overruns-unknown") == Severity.ERROR
