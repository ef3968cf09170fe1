"""The fabric simulator: a cycle-level model of PEs, routers and the host's port."""

from openwafer.sdk.fabric.account import Account, SlotState
from openwafer.sdk.fabric.edge import NO_PORTS, Edge, Passed, Port, Side
from openwafer.sdk.fabric.events import EventKind, Scope
from openwafer.sdk.fabric.machine import Statistics
from openwafer.sdk.fabric.moments import Landing, Print, Standing
from openwafer.sdk.fabric.simulator import Simulator, SimulatorOptions

__all__ = [
    "NO_PORTS",
    "Account",
    "Edge",
    "EventKind",
    "Landing",
    "Passed",
    "Port",
    "Print",
    "Scope",
    "Side",
    "Simulator",
    "SimulatorOptions",
    "SlotState",
    "Standing",
    "Statistics",
]
