"""The largest scores of each group: exact counts, equal scores in the order of their positions.

Scores are at least 0; those of units that may not be taken are -1. What is taken is a function of
the values alone, whatever the device and the number of threads.
"""

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from openwafer.diagnostics import error

NOT_ELIGIBLE = -1
BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
}
NUM_BUCKETS = 2**15 + 1


def largest(scores: Tensor, num: int | Tensor) -> Tensor:
    """Mark the `num` largest scores of each group.

    Args:
        scores: [groups, units]; of equal ones the first are taken.
        num: for all groups, or [groups] int64; never more than a group has eligible units.

    Returns:
        Bool [groups, units].
    """
    num_groups, num_units = scores.shape
    if num_groups == 1:
        return _largest_of_one(scores.reshape(-1), int(num)).reshape(1, -1)
    counts = torch.as_tensor(num, device=scores.device).reshape(-1, 1)
    order = scores.argsort(dim=1, descending=True, stable=True)
    is_taken = (torch.arange(num_units, device=scores.device) < counts).expand(num_groups, -1)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, is_taken)


def _largest_of_one(scores: Tensor, num: int) -> Tensor:
    # By the value of the last score that is taken, which no sort is needed for.
    if num == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    last = _at_rank(scores, num)
    marked = scores > last
    equal = (scores == last).nonzero().reshape(-1)
    marked[equal[: num - int(marked.count_nonzero())]] = True
    return marked


def _at_rank(scores: Tensor, num: int) -> Tensor:
    """The `num`-th largest of `scores`, all of which are at least 0 or not eligible."""
    # The bits of numbers from 0 up are in the order of the numbers, so the upper 16 sort them into
    # buckets that can be counted; only one bucket must be looked into.
    bits = scores.view(BITS[scores.dtype])
    buckets = (bits >> (8 * scores.element_size() - 16)).clamp_(min=-1).add_(1)
    counts = torch.bincount(buckets, minlength=NUM_BUCKETS).cpu()
    num_from = counts.flip(0).cumsum(0)
    bucket = NUM_BUCKETS - 1 - int((num_from < num).sum())
    inside = scores[buckets == bucket]
    rank = num - int(counts[bucket + 1 :].sum())
    return inside.kthvalue(inside.numel() - rank + 1).values


def count(units: Tensor) -> Tensor:
    """Marked units of each group: int64 [groups] from bool [groups, units]."""
    # A sum makes eight bytes of every bool first, which a count of all of them does not.
    return units.count_nonzero().reshape(1) if len(units) == 1 else units.sum(dim=1)


def are_finite(scores: Tensor) -> bool:
    """Whether all `scores`, magnitudes or not eligible, are finite."""
    return bool(scores.max().isfinite())


def magnitudes(values: Tensor) -> Tensor:
    """Absolute values, in fp32 where `values` are of a shorter format."""
    found = values.detach().abs()
    return found if found.dtype in (torch.float32, torch.float64) else found.float()


def require_finite(weights: Tensor, name: str) -> None:
    """Raise ``weights-not-finite`` where no order can be made of `weights`."""
    num_wrong = int((~weights.isfinite()).sum())
    if num_wrong:
        raise error(
            "weights-not-finite",
            f"{num_wrong} of {weights.numel()} weights of {name} are not finite",
            help="choose random masks, or load other weights",
        )


def random_scores(grid: tuple[int, int], seed: int, step: int, name: str) -> Tensor:
    """A random order of units: int32 [groups, units] of 31 bits, drawn on the host.

    They depend on the arguments alone: NumPy promises that PCG64 draws the same under one seed.
    """
    key = blake2b(f"{seed} {step} {name}".encode(), digest_size=16).digest()
    raw = np.random.PCG64(int.from_bytes(key, "little")).random_raw(grid[0] * grid[1])
    return torch.from_numpy((raw >> np.uint64(33)).astype(np.int32)).reshape(grid)
