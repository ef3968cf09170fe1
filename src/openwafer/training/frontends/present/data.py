"""What scripts find in ``cstorch.utils.data``."""

import math
from collections.abc import Sized

from openwafer.diagnostics import error
from openwafer.training.frontends.present.executor import DataExecutor
from openwafer.training.frontends.present.loader import DataLoader, RestartableDataLoader

__all__ = ["DataExecutor", "DataLoader", "RestartableDataLoader", "compute_num_steps"]


def compute_num_steps(  # noqa: PLR0913 - the vendor's
    dataloader: Sized,
    initial_step: int = 0,
    num_steps: int | None = None,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    grad_accum_steps: int = 1,
) -> int:
    """Steps that a script still has to take: the least that its arguments allow.

    Args:
        dataloader: has as many batches as an epoch, unless `steps_per_epoch` says less.
        initial_step: steps that are done.
        num_steps: steps to take, or
        max_steps: steps to have done, or
        num_epochs: epochs to take.
        steps_per_epoch: see above.
        grad_accum_steps: batches of a step.

    Raises:
        OpenwaferError: ``present-steps``.
    """
    bounds: list[float] = [] if num_steps is None else [num_steps]
    if max_steps is not None:
        bounds.append(max_steps - initial_step)
    if num_epochs is not None:
        batches = len(dataloader) if steps_per_epoch is None else steps_per_epoch
        bounds.append(num_epochs * (batches // grad_accum_steps))
    least = min(bounds, default=math.inf)
    if not 1 <= least < math.inf or (num_steps is not None and num_epochs is not None):
        raise error(
            "present-steps",
            f"no number of steps follows from num_steps={num_steps}, max_steps={max_steps}, "
            f"num_epochs={num_epochs} behind {initial_step} steps",
            help="give num_steps or num_epochs, or max_steps beyond the steps that are done",
        )
    return int(least)
