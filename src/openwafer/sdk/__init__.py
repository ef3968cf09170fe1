"""The wafer SDK: a CSL compiler, a cycle-level fabric simulator and the host runtime."""

import importlib
from typing import Any

# The door's names are loaded when first used: the simulator takes a second.
_HOST = ("DataType", "Order", "Region", "Runtime", "RuntimeOptions")


def __getattr__(name: str) -> Any:
    if name not in _HOST:
        raise AttributeError(f"module 'openwafer.sdk' has no attribute '{name}'")
    return getattr(importlib.import_module("openwafer.sdk.host"), name)
