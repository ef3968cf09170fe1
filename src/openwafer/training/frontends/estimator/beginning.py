"""Where a call of ``train`` begins: anew, or behind the batches of a call that was cut off."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import torch

from openwafer.training.frontends.estimator import states
from openwafer.training.frontends.estimator.checkpoints import Checkpoint, Index
from openwafer.training.frontends.estimator.inputs import Batch


@dataclass(frozen=True)
class Beginning:
    """The batches of a call, and torch's random numbers.

    Attributes:
        batches: that are left; the first is `first`.
        first: None where the call that was cut off had taken all.
        is_resumed: whether a call was cut off.
        num_batches: that were taken before.
        random_at_begin: random state when batches began.
        random_state: behind the first batch.
    """

    batches: Iterator[Batch]
    first: Batch | None
    is_resumed: bool
    num_batches: int
    random_at_begin: torch.Tensor
    random_state: torch.Tensor

    @classmethod
    def of(
        cls,
        index: Index,
        checkpoint: Checkpoint | None,
        seed: int | None,
        begin_batches: Callable[[], Iterator[Batch]],
    ) -> "Beginning":
        """That of a call.

        Args:
            index, checkpoint: of the latest checkpoint.
            seed: of a model that is made anew.
            begin_batches: calls the input function.
        """
        cut_off = None if index.is_ended else checkpoint
        if cut_off is not None:
            torch.set_rng_state(cut_off.read(states.RANDOM_AT_BEGIN))
        elif checkpoint is None and seed is not None:
            torch.manual_seed(seed)
        random_at_begin = torch.get_rng_state()
        batches = begin_batches()
        num_batches = 0 if cut_off is None else cut_off.notes.num_batches
        for _ in islice(batches, num_batches):
            pass
        if cut_off is not None:
            torch.set_rng_state(cut_off.read(states.RANDOM))
        first = next(batches, None)
        rest = batches if first is None else chain((first,), batches)
        return cls(
            rest, first, cut_off is not None, num_batches, random_at_begin, torch.get_rng_state()
        )
