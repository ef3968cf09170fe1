"""Train models larger than the device by streaming their weights, layer by layer."""

__version__ = "0.1.0"
