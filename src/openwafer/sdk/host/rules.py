"""What a run's outcome depends on beside its program and what the host asks for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import openwafer.sdk.fabric as fabric
from openwafer.sdk.fabric.edge import NO_PORTS, Edge
from openwafer.sdk.fabric.host_links import Transport
from openwafer.sdk.host.checks import Check
from openwafer.sdk.host.delays import HostDelays
from openwafer.sdk.host.pe_code import EngineKind, Form, PeCode, build_engine, num_threads
from openwafer.sdk.program.environment import choice
from openwafer.sdk.program.program import Program

if TYPE_CHECKING:
    from openwafer.sdk.fabric import Scope, Simulator

TRANSPORT_VARIABLE: Final = "OPENWAFER_TRANSPORT"
"""Environment variable that says by which way copies and streams of the host go."""


def transport_of_environment() -> Transport:
    """What the environment says, ideal otherwise. Raises OpenwaferError for another word."""
    return Transport(choice(TRANSPORT_VARIABLE, Transport, "transport-unknown"))


@dataclass(frozen=True)
class Rules:
    """Options of a run, nothing left to the environment.

    Attributes:
        engine: what runs PE code.
        check: whether the run looks for mistakes of the program.
        stops_at_overrun: an operation that goes over the end of a variable is an error.
        can_idle: stopping waits until the fabric is at rest, however long that takes.
        can_stop_unfinished: a command that PEs at rest have not ended is a warning.
        edge: ports of the rectangle.
        delays: of launches; None is those of the way alone.
        transport: of words that the host copies and streams.
    """

    engine: EngineKind
    check: Check
    stops_at_overrun: bool
    can_idle: bool
    can_stop_unfinished: bool
    edge: Edge = NO_PORTS
    delays: HostDelays | None = None
    transport: Transport = Transport.IDEAL

    def machine_of(
        self,
        program: Program,
        threads: int,
        *,
        has_landings: bool = False,
        has_account: bool = False,
        form: Form = Form.PLAIN,
        scope: "Scope | None" = None,
    ) -> "tuple[Simulator, PeCode]":
        """Put a program on a fabric, which calls its code by address: it has to live as long.

        Args:
            threads: the most that simulate the fabric; results do not depend on it.
            has_landings: every landing of a wavelet is recorded.
            has_account: the time of each PE is booked.
            form: of native code; what is stepped is native, on one thread, and what counts has to
                be given counters.
            scope: of what the simulator gives events for a record; None is nothing.
        """
        self.edge.check(program)
        is_stepped = form is Form.STEPPED
        engine = EngineKind.NATIVE if is_stepped else self.engine
        code = build_engine(program, engine, depth=self.check.depth, form=form)
        options = fabric.SimulatorOptions(
            landing_log=has_landings,
            threads=1 if is_stepped else num_threads(threads, program.width * program.height),
            stops_at_overrun=self.stops_at_overrun,
            is_checked=self.check is not Check.OFF,
            has_account=has_account,
            scope=scope,
            is_stepped=is_stepped,
            code=f"{engine}, {self.check.depth.name.lower()}, {form}",
            edge=self.edge,
            transport=self.transport,
        )
        return fabric.Simulator(program, code.run_address, code.element_address, options), code
