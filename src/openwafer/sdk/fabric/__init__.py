"""The fabric simulator: a cycle-level model of PEs, routers and the host's port."""

from openwafer.sdk.fabric.account import Account, SlotState
from openwafer.sdk.fabric.events import EventKind, Scope
from openwafer.sdk.fabric.machine import Statistics
from openwafer.sdk.fabric.simulator import Landing, Print, Simulator, SimulatorOptions

__all__ = [
    "Account",
    "EventKind",
    "Landing",
    "Print",
    "Scope",
    "Simulator",
    "SimulatorOptions",
    "SlotState",
    "Statistics",
]
