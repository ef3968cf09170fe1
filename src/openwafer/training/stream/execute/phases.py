"""Where an executor is in a pass."""

from enum import Enum


class Phase(Enum):
    """Where the executor is in a pass."""

    IDLE = "no pass is open"
    FORWARD = "in a pass, between layers"
    LAYER = "in a layer's forward"
    BACKWARD = "in a backward, whose end ends the pass"
    RECOMPUTE = "in a layer that runs again in the backward"
