"""How a run ends, and what is told of it then: by `stop`, or where a script ends without it.

A run that nobody stops is brought to its end as a stopped one is, when its owner is gone or the
interpreter ends: what is queued is carried out, the command and the fabric come to rest, and
mistakes are told. Where stopping would have raised an error, the process ends with an exit code
that says so. A script that failed by itself is only told what was found up to then.
"""

import logging
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from openwafer.diagnostics import Diagnostic, OpenwaferError, tell
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host.checks import Check, Warnings, as_errors, mistakes
from openwafer.sdk.host.operations import Operation, Stop, Words

MAX_TOLD: Final = 10
_EXIT_FAILED: Final = 1
_NEVER_STOPPED: Final = "the script never stopped the run, so this is told where it ended"


@dataclass
class Ending:
    """What a run's end needs, without the run itself.

    Attributes:
        simulator: the fabric.
        warnings: what the host has to warn of.
        check: what becomes of mistakes.
        carry_out: what carries out operations of the host.
        queued: what carries out the operations that wait; it keeps the run alive while some do.
    """

    simulator: Simulator
    warnings: Warnings
    check: Check
    carry_out: Callable[[Operation], Words | None]
    queued: list[Callable[[], None]] = field(default_factory=list)

    def findings(self) -> tuple[Diagnostic, ...]:
        """All that is to be told now."""
        return self.warnings.all_with(self.simulator, self.check)

    def tell(self) -> None:
        """Write the findings to the standard error."""
        found = self.findings()
        if self.check in (Check.WARNING, Check.WRAP):
            _TOLD.extend(mistakes(found))
        tell(found[:MAX_TOLD])
        if len(found) > MAX_TOLD:
            more = f"and {len(found) - MAX_TOLD} more warnings; sim.log has all of them"
            sys.stderr.write(f"{more}\n")

    def judge(self) -> None:
        """Tell of a run that nobody stopped what stopping it would have told."""
        found: tuple[Diagnostic, ...] = ()
        if not _has_failed():
            try:
                for action in list(self.queued):
                    action()
                self.carry_out(Stop())
            except OpenwaferError as error:
                found = error.diagnostics
        if self.check is Check.ERROR and not found:
            errors = as_errors(self.findings())
            found = errors.diagnostics if errors else ()
        else:
            self.tell()
        _FAILED.extend(found)
        tell(replace(one, notes=(*one.notes, _NEVER_STOPPED)) for one in found)


Finalizer: TypeAlias = "weakref.finalize[..., Any]"
_FINALIZERS: Final[list[Finalizer]] = []
_TOLD: Final[list[Diagnostic]] = []
"""What checked runs of this process have told."""
_FAILED: Final[list[Diagnostic]] = []
"""Errors of runs that nobody stopped."""


def judged_at_end(owner: object, ending: Ending) -> Finalizer:
    """What judges a run where its owner is gone; a run that is told of itself detaches it."""
    made = weakref.finalize(owner, Ending.judge, ending)
    _FINALIZERS[:] = [*(other for other in _FINALIZERS if other.alive), made]
    return made


def judge_all() -> bool:
    """End all runs that nobody stopped; whether this process has found mistakes in its runs."""
    for finalizer in reversed(_FINALIZERS):
        finalizer()
    _FINALIZERS.clear()
    return bool(_TOLD or _FAILED)


def tell_of_all() -> None:
    """Tell what was found in runs up to now, as their script has failed."""
    while _FINALIZERS:
        detached = _FINALIZERS.pop().detach()
        if detached is not None:
            detached[2][0].tell()


def _has_failed() -> bool:
    """Whether an exception has ended the script."""
    return hasattr(sys, "last_type")


def _leave() -> None:
    """End the process with a code of its own where a run that nobody stopped has failed."""
    judge_all()
    if _FAILED and not _has_failed():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_EXIT_FAILED)


# Of what is made first, Python's exit comes last: other objects have ended by then.
weakref.finalize(Ending, _leave)
