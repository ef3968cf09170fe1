"""The global step of the run under way."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from openwafer.diagnostics import error

__all__ = ["create_global_step", "get_global_step", "get_or_create_global_step"]


class _Process:
    step: torch.Tensor | None = None


@contextmanager
def counting(start: int) -> Iterator[torch.Tensor]:
    """Context of a run, whose steps are counted in the tensor."""
    before = _Process.step
    _Process.step = torch.tensor(start)
    try:
        yield _Process.step
    finally:
        _Process.step = before


def get_global_step() -> torch.Tensor:
    """Steps that were taken, int64 without a dimension; it counts on by itself.

    Raises:
        OpenwaferError: ``estimator-global-step`` outside of a run.
    """
    if _Process.step is None:
        raise error(
            "estimator-global-step",
            "the global step is asked for, and no estimator runs",
            help="ask for it in model_fn, or read get_variable_value('global_step')",
        )
    return _Process.step


create_global_step = get_or_create_global_step = get_global_step
