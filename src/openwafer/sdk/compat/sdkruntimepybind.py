"""The vendor's host runtime on the simulated fabric."""

import importlib
from typing import TYPE_CHECKING, Any

from openwafer.sdk.compat.layout.region import CodeRegion, PortHandle
from openwafer.sdk.compat.layout.routes import (
    Color,
    Edge,
    EdgeRouteInfo,
    Route,
    RoutingPosition,
    get_edge_routing,
)
from openwafer.sdk.compat.platform import (
    SdkCompileArtifacts,
    SdkExecutionPlatform,
    SdkTarget,
    SimfabConfig,
    get_platform,
    get_simulator,
    get_system,
)
from openwafer.sdk.compat.runtime import SdkRuntime
from openwafer.sdk.compat.transfer_enums import MemcpyDataType, MemcpyOrder
from openwafer.sdk.host import Task

if TYPE_CHECKING:
    from openwafer.sdk.compat.layout.layout import FP16TYPE, SdkLayout

__all__ = [
    "FP16TYPE",
    "CodeRegion",
    "Color",
    "Edge",
    "EdgeRouteInfo",
    "MemcpyDataType",
    "MemcpyOrder",
    "PortHandle",
    "Route",
    "RoutingPosition",
    "SdkCompileArtifacts",
    "SdkExecutionPlatform",
    "SdkLayout",
    "SdkRuntime",
    "SdkTarget",
    "SimfabConfig",
    "Task",
    "get_edge_routing",
    "get_platform",
    "get_simulator",
    "get_system",
]

# Layouts bring the compiler, which most scripts do not need.
_LAYOUT = "openwafer.sdk.compat.layout.layout"


def __getattr__(name: str) -> Any:
    if name in ("FP16TYPE", "SdkLayout"):
        return getattr(importlib.import_module(_LAYOUT), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
