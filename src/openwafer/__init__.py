"""Train models larger than the device, and program a wafer of 850,000 cores."""

from openwafer.lazy_names import lazy_names

__version__ = "0.1.0"

# Where the names of this door live; loaded when first used, since they bring torch.
_HOMES = {
    "Fabric": "fabric_device",
    "Session": "training.session",
    "deferred_weights": "training.frontends",
    "stream_weights": "training.frontends",
}

__getattr__ = lazy_names(__name__, _HOMES)
