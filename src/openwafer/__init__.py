"""Train models larger than the device, and program a wafer of 850,000 cores."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Where the names of this door live; loaded when first used, since they bring torch.
_HOMES = {
    "Fabric": "openwafer.fabric_device",
    "Session": "openwafer.training.session",
    "deferred_weights": "openwafer.training.frontends",
    "stream_weights": "openwafer.training.frontends",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'openwafer' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
