"""Cycles of both passes of a layer, beside those of its plan."""

from typing import Protocol

import pytest


class LayerPlan(Protocol):
    """What norms, activation functions and attention plan."""

    @property
    def cycles(self) -> int:
        """Of the forward pass."""

    @property
    def backward_cycles(self) -> int:
        """Of the backward pass."""


def check_passes(plan: LayerPlan, passes: tuple[int, int], *, share: float = 0) -> None:
    """Passes take what the plan says.

    Args:
        plan: of the layer.
        passes: cycles of runs forward and backward.
        share: of the plan's cycles that they may differ by; 0 allows two cycles.
    """
    planned = plan.cycles, plan.backward_cycles
    assert passes == pytest.approx(planned, rel=share, abs=0 if share else 2)
