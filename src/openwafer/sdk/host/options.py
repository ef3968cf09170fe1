"""How a run is simulated."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openwafer.config import convert_fields
from openwafer.sdk.fabric import NO_PORTS, Edge, Transport
from openwafer.sdk.host.checks import (
    Check,
    check_of_environment,
    stops_at_overrun_by_environment,
)
from openwafer.sdk.host.delays import HostDelays, delays_of_environment
from openwafer.sdk.host.pe_code import MAX_THREADS, EngineKind, engine_kind_of_environment
from openwafer.sdk.host.record import RecordOptions
from openwafer.sdk.host.rules import Rules, transport_of_environment


@dataclass(frozen=True)
class RuntimeOptions:
    """How a run is simulated.

    Attributes:
        engine: what runs PE code; None asks the environment.
        threads: the most threads that simulate the fabric; results do not depend on it.
        stops_at_overrun: a vector operation that goes over the end of a variable is an error, and
            not a warning; None asks the environment.
        log_folder: where ``sim.log`` and ``sim_stats.json`` go; None writes none.
        can_idle: the program goes on by itself without commands, as those of a layout in Python
            do: stopping waits until it is at rest, however long that takes.
        check: whether the run looks for mistakes of the program; None asks the environment.
        can_stop_unfinished: stopping is a warning, and no error, while PEs that rest have not
            opened the command stream again, as the vendor's `stop` asks nothing of PEs.
        record: file that gets what happens on the fabric, event by event; with options also what
            of it. None asks the environment.
        journal: file that keeps what the host asks for, so that the run can be done again; None
            asks the environment. The words of copies and sends stay in memory until the run ends.
        has_account: the time of PEs is booked for :meth:`~openwafer.sdk.host.Runtime.account`.
        has_line_cycles: code counts what it passes, for
            :meth:`~openwafer.sdk.host.Runtime.line_cycles`.
        delays: launches reach PEs in turns and late, as random numbers say; None asks the
            environment.
        edge: ports that words enter and leave the fabric by; none unless some are given.
        transport: whether copies and streams of the host take an ideal time, or share links at the
            edge: its ports, or where there are none one in the west of each row; None asks the
            environment.
    """

    engine: EngineKind | None = None
    threads: int = MAX_THREADS
    stops_at_overrun: bool | None = None
    log_folder: Path | None = Path()
    can_idle: bool = False
    check: Check | None = None
    can_stop_unfinished: bool = False
    journal: Path | None = None
    record: RecordOptions | Path | None = None
    has_account: bool = False
    has_line_cycles: bool = False
    edge: Edge = NO_PORTS
    delays: HostDelays | None = None
    transport: Transport | None = None

    def __post_init__(self) -> None:
        convert_fields(self)

    def rules(self) -> Rules:
        """What the run's outcome depends on; the environment says what the options leave open."""
        stops = self.stops_at_overrun
        return Rules(
            engine=self.engine or engine_kind_of_environment(),
            check=check_of_environment() if self.check is None else self.check,
            stops_at_overrun=stops_at_overrun_by_environment() if stops is None else stops,
            can_idle=self.can_idle,
            can_stop_unfinished=self.can_stop_unfinished,
            edge=self.edge,
            delays=self.delays or delays_of_environment(),
            transport=self.transport or transport_of_environment(),
        )


DEFAULT: Final = RuntimeOptions()
