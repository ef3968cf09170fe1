"""Profiles of kernels that are called as functions."""

import numpy as np

from openwafer.sdk import kernels

X = np.ones(24, np.float32)


def test_runs_of_kernels_have_profiles_behind_their_context() -> None:
    with kernels.profiled() as runs:
        first, second = (kernels.dot(X, X, (1, 2)) for _ in range(2))
    assert first.cycles == second.cycles == kernels.dot(X, X, (1, 2)).cycles
    assert len(runs) == 2
    assert runs[-1].profile().totals == runs[0].profile().totals
    # Each PE multiplies and adds its 12 elements.
    assert (runs[-1].account().main.beats >= 12).all()
