"""The vendor's logging of its cluster client."""

import logging

__all__ = ["logger"]

logger = logging.getLogger("cerebras.appliance")
"""Where client scripts log to."""
