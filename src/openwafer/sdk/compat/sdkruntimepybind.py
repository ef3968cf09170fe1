"""The vendor's host runtime on the simulated fabric."""

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

__all__ = [
    "MemcpyDataType",
    "MemcpyOrder",
    "SdkCompileArtifacts",
    "SdkExecutionPlatform",
    "SdkRuntime",
    "SdkTarget",
    "SimfabConfig",
    "Task",
    "get_platform",
    "get_simulator",
    "get_system",
]
