"""The vendor's descriptions of where a program runs."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.arch.generation import Arch

MAX_THREADS = 64


def check_threads(number: int) -> None:
    """Raise OpenwaferError unless the number of threads is one that the vendor takes."""
    if not 1 <= number <= MAX_THREADS:
        raise error("thread-count", f"{number} threads; the simulator takes 1 to {MAX_THREADS}")


class SdkTarget(Enum):
    """A wafer generation."""

    WSE2 = 2
    WSE3 = 3

    @property
    def arch(self) -> Arch:
        """Our word for it."""
        return Arch.WSE2 if self is SdkTarget.WSE2 else Arch.WSE3


@dataclass(frozen=True)
class SimfabConfig:
    """How to simulate.

    Attributes:
        num_threads: 1 to 64; results do not depend on it.
        suppress_trace: leave no folder ``simfab_traces``.
        dump_core: write the memory of all PEs when the run stops.
        core_path: where to; ``out.core`` otherwise.
    """

    num_threads: int = 16
    suppress_trace: bool = False
    dump_core: bool = False
    core_path: Path | str | None = None

    def __post_init__(self) -> None:
        check_threads(self.num_threads)


@dataclass(frozen=True)
class SdkExecutionPlatform:
    """The simulator of a generation."""

    config: SimfabConfig
    target: SdkTarget

    def is_simulation(self) -> bool:
        """Whether it is a simulator: always."""
        return True

    def is_system(self) -> bool:
        """Whether it is a wafer: never."""
        return False


@dataclass(frozen=True)
class SdkCompileArtifacts:
    """An output folder of the compiler."""

    artifacts_path: Path | str


def get_simulator(
    config: SimfabConfig = SimfabConfig(), target: SdkTarget = SdkTarget.WSE3
) -> SdkExecutionPlatform:
    """Return the simulator of a generation."""
    return SdkExecutionPlatform(config, target)


def get_platform(
    cmaddr: str | None = None,
    config: SimfabConfig = SimfabConfig(),
    target: SdkTarget = SdkTarget.WSE3,
) -> SdkExecutionPlatform:
    """Return the simulator; raises OpenwaferError for the address of a system."""
    if cmaddr:
        raise no_system(cmaddr)
    return get_simulator(config, target)


def get_system(cmaddr: str) -> SdkExecutionPlatform:
    """Raise OpenwaferError: programs run on the simulator."""
    raise no_system(cmaddr)


def no_system(cmaddr: str) -> OpenwaferError:
    """Build the error for a system's address."""
    return error(
        "no-system",
        f"there is no system at {cmaddr}: programs run on the simulator",
        help="leave --cmaddr away",
    )
