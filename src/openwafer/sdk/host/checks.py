"""Whether a run looks for all mistakes, and what becomes of those it finds."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity
from openwafer.sdk.host.copies import RegionMemory, short_copy, width_of_copy
from openwafer.sdk.host.symbols import HostSymbols
from openwafer.sdk.host.tensors import DataType
from openwafer.sdk.ir.checks import Depth
from openwafer.sdk.program.environment import CHECK_VARIABLE, choice
from openwafer.sdk.program.program import HostName

if TYPE_CHECKING:
    from openwafer.sdk.fabric import Simulator

OVERRUNS_VARIABLE: Final = "OPENWAFER_OVERRUNS"
"""Environment variable that says whether an overrun is a warning or an error."""


class Check(StrEnum):
    """What a run does about mistakes of its program."""

    OFF = "off"
    """It tells of those that cost nothing to find, and its exit code is the script's own."""
    WARNING = "warning"
    """It looks at every access; with mistakes `cs_python` ends with an exit code of its own."""
    ERROR = "error"
    """It looks at every access, and stopping raises mistakes."""
    WRAP = "wrap"
    """As WARNING; it also looks at integer arithmetic, which may wrap on purpose."""

    @property
    def depth(self) -> Depth:
        """How closely code is looked at."""
        known = {Check.OFF: Depth.PLAIN, Check.WRAP: Depth.WRAPS}
        return known.get(self, Depth.CHECKED)


def check_of_environment() -> Check:
    """What the environment says.

    Raises OpenwaferError when it says nothing that is known.
    """
    return Check(choice(CHECK_VARIABLE, Check, "check-unknown", f"not one of {', '.join(Check)}"))


def stops_at_overrun_by_environment() -> bool:
    """Whether the environment makes an overrun an error; it is a warning otherwise.

    Raises OpenwaferError when the environment says neither.
    """
    known = (str(Severity.WARNING), str(Severity.ERROR))
    return choice(OVERRUNS_VARIABLE, known, "overruns-unknown") == Severity.ERROR


@dataclass
class Warnings:
    """What the host itself warns of in a run.

    Attributes:
        overruns: copies over the end of a variable, by message.
        copies: copies that hardly mean what they do, by message.
        short_copies: copies of a part of a variable, by its name.
        whole_copies: variables that some copy takes whole.
        unfinished: a command that no PE can end any more, where the run may stop so.
        left_over: wavelets that nobody took.
    """

    overruns: dict[str, Diagnostic] = field(default_factory=dict)
    copies: dict[str, Diagnostic] = field(default_factory=dict)
    short_copies: dict[str, Diagnostic] = field(default_factory=dict)
    whole_copies: set[str] = field(default_factory=set)
    unfinished: tuple[Diagnostic, ...] = ()
    left_over: tuple[Diagnostic, ...] = ()

    def note(self, found: Diagnostic | None) -> None:
        """Note a copy that hardly means what it does, once for each message; None is no mistake."""
        if found is not None:
            self.copies.setdefault(found.message, found)

    def note_copy(
        self, symbols: HostSymbols, memory: RegionMemory, variable: HostName, data_type: DataType
    ) -> None:
        """Note what a copy hardly means: elements of another width, or a part of a variable."""
        self.note(width_of_copy(variable, data_type))
        short = short_copy(symbols, memory, variable, data_type)
        if short is None:
            self.whole_copies.add(variable.name)
        else:
            self.short_copies.setdefault(variable.name, short)

    def all_with(self, simulator: "Simulator", check: Check) -> tuple[Diagnostic, ...]:
        """Those of the machine as well; notes only where the run is checked."""
        is_checked = check is not Check.OFF
        short = [one for name, one in self.short_copies.items() if name not in self.whole_copies]
        copies = [*self.copies.values(), *short]
        told = [one for one in copies if is_checked or one.severity is not Severity.NOTE]
        return (
            *(*self.overruns.values(), *simulator.findings(), *told),
            *(*self.unfinished, *self.left_over),
        )


def mistakes(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """What is more than a note."""
    return [one for one in found if one.severity is not Severity.NOTE]


def as_errors(found: Iterable[Diagnostic]) -> OpenwaferError | None:
    """The error that a run ends with where mistakes are errors; None where there are none."""
    errors = [replace(one, severity=Severity.ERROR) for one in mistakes(found)]
    return OpenwaferError(*errors) if errors else None
