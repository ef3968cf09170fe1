"""What scripts ask of the vendor's stack, and set in its compiler."""

from dataclasses import dataclass
from typing import Final, NoReturn

from openwafer.diagnostics import error
from openwafer.training.frontends.scripts.compiler import CompilerSettings
from openwafer.training.frontends.session import program

__all__ = [
    "AP_DISABLED",
    "AssessBottlenecks",
    "CompilerSettings",
    "Environment",
    "State",
    "env",
    "locate_csperf_log",
    "state",
]

AP_DISABLED: Final = "disabled"
"""A value of the compiler's ``autogen_policy``."""


@dataclass(frozen=True)
class Environment:
    """How a script's steps run.

    Attributes:
        appliance: whether a cluster runs them; this process does.
        weight_streaming_mode: whether a script keeps the states of its metrics on the device; they
            are on the host here, as in a plain loop.
        service_workdir: the folder of this process.
    """

    appliance: bool = False
    weight_streaming_mode: bool = False
    service_workdir: str = "."


class State:
    """The program, as scripts ask for it.

    Attributes:
        full_config: see :class:`CompilerSettings`.
        rate_tracker: None: nothing measures samples a second.
    """

    rate_tracker: Final = None

    def __init__(self) -> None:
        self.full_config = CompilerSettings()

    @property
    def is_inside_execution_loop(self) -> bool:
        """Whether a session is open."""
        running = program.running()
        return running is not None and running.session is not None

    def register_metric(self, metric: object) -> None:
        """Know of a metric, whose closures run at the end of a step as all others do."""


def env() -> Environment:
    """How steps run here."""
    return Environment()


_STATE = State()


def state() -> State:
    """The program's state."""
    return _STATE


def locate_csperf_log(folder: str) -> str | None:
    """Where the log of a machine's performance is: there is no machine, and None."""
    return None


class AssessBottlenecks:
    """What a machine's log says of its inputs.

    Raises:
        OpenwaferError: ``session-log``: there is none.
    """

    def __init__(self, log: object) -> NoReturn:
        raise error(
            "session-log",
            f"there is no log of a machine's performance to read, and {log!r} is none",
            help="session.streamed.predict() tells what a step takes",
        )
