"""The fabric simulator: a cycle-level model of PEs, routers and the host's port."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from openwafer.lazy_names import lazy_names

if TYPE_CHECKING:
    from openwafer.sdk.fabric.account import Account, SlotState
    from openwafer.sdk.fabric.edge import NO_PORTS, Edge, Passed, Port, Side
    from openwafer.sdk.fabric.events import EventKind, Scope
    from openwafer.sdk.fabric.host_links import Transport
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
    "Transport",
]

# Loaded when first used: who reads what a run has left needs no compiled core.
_PLACES: Final = MappingProxyType(
    {
        **dict.fromkeys(("Account", "SlotState"), "account"),
        **dict.fromkeys(("NO_PORTS", "Edge", "Passed", "Port", "Side"), "edge"),
        **dict.fromkeys(("EventKind", "Scope"), "events"),
        "Transport": "host_links",
        "Statistics": "machine",
        **dict.fromkeys(("Landing", "Print", "Standing"), "moments"),
        **dict.fromkeys(("Simulator", "SimulatorOptions"), "simulator"),
    }
)

__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return __all__
