"""Telling users of vector operations that went over the end of an array."""

import os
import sys
from collections.abc import Mapping
from typing import Final

from openwafer.diagnostics import Diagnostic, Severity, did_you_mean, error, render, wants_color
from openwafer.sdk.fabric import Simulator

OVERRUNS_VARIABLE: Final = "OPENWAFER_OVERRUNS"
"""Environment variable that says whether an overrun is a warning or an error."""
MAX_TOLD: Final = 10
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


def tell_overruns(simulator: Simulator, of_copies: Mapping[str, Diagnostic]) -> None:
    """Write the warnings of a run to the standard error."""
    warnings = (*of_copies.values(), *simulator.overruns())
    lines = [render(warning, color=wants_color(sys.stderr)) for warning in warnings[:MAX_TOLD]]
    if len(warnings) > MAX_TOLD:
        lines.append(f"and {len(warnings) - MAX_TOLD} more overruns; sim.log has all of them")
    sys.stderr.writelines(f"{line}\n" for line in lines)
