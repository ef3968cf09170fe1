"""Describes the systems that train models: wafers and GPUs, published or in a file."""

from openwafer.planning.systems.published import A100, CS1, CS2, CS3, H200
from openwafer.planning.systems.system import Fabric, Server, SimulatedCycles, System
from openwafer.planning.systems.system_files import find_system, read_system

__all__ = [
    "A100",
    "CS1",
    "CS2",
    "CS3",
    "H200",
    "Fabric",
    "Server",
    "SimulatedCycles",
    "System",
    "find_system",
    "read_system",
]
