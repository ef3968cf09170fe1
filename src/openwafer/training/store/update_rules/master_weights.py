"""An fp32 master weight kept as the bf16 that is streamed and the 16 bits that are missing.

The streamed half is the master rounded to nearest, ties to even, as a resident mixed-precision loop
casts it. What is missing is the master's bit pattern less that of the half, in units of the
master's last place: from -32768 to 32768, one value more than 16 bits hold. Both ends are ties
between two neighbouring bf16; -32768 and 32768 share a code, and one bit a weight, of which
only those at such ties are ever set, tells them apart. So the halves and the bit are the master,
bit for bit: infinities, negative zero, subnormals and the overflow to infinity included. A NaN
stays a NaN, its payload aside.
"""

from dataclasses import dataclass

import numpy as np
import torch

from openwafer.training.store.update_rules.rule import RUN_ELEMENTS, StateSpec
from openwafer.training.torch_private import FakeTensor

LOW_BITS = "master_low_bits"
TIE_BITS = "master_tie_bits"
TIES_PER_WORD = 64

_TIE = -(1 << 15)


@dataclass(frozen=True)
class SplitMaster:
    """Flat views of a master's three arrays, or of one run of their elements.

    `high` is bf16, `low` int16, both of n elements; `ties` holds ceil(n / 64) int64 words, a bit
    an element. A run starts at a multiple of 64.
    """

    high: torch.Tensor
    low: torch.Tensor
    ties: torch.Tensor


def split_states(shape: tuple[int, ...]) -> tuple[StateSpec, ...]:
    """The arrays that complete a bf16 weight of that shape."""
    num_words = -(-torch.Size(shape).numel() // TIES_PER_WORD)
    return (
        StateSpec(LOW_BITS, shape, torch.int16),
        StateSpec(TIE_BITS, (num_words,), torch.int64),
    )


def split_master(master: torch.Tensor, parts: SplitMaster) -> None:
    """Write an fp32 master, a flat contiguous tensor, into its parts."""
    words = parts.ties.split(RUN_ELEMENTS // TIES_PER_WORD)
    cuts = [tensor.split(RUN_ELEMENTS) for tensor in (master, parts.high, parts.low)]
    for run, high, low, ties in zip(*cuts, words, strict=True):
        _split_run(run, SplitMaster(high, low, ties))


def _split_run(master: torch.Tensor, parts: SplitMaster) -> None:
    parts.high.copy_(master)
    bits = master.view(torch.int32)
    parts.low.copy_(bits)
    parts.ties.zero_()
    # Without values, as where a plan counts the operators of an update, nothing is tied.
    if isinstance(master, FakeTensor):
        return
    # Ties are few, and numpy finds and handles a few several times faster than torch does.
    ties = np.flatnonzero(parts.low.numpy() == _TIE)
    if ties.size:
        rounded_down = ties[(bits.numpy()[ties] >> 16) & 1 == 0]
        words, bit_numbers = np.divmod(rounded_down, TIES_PER_WORD)
        np.bitwise_or.at(parts.ties.numpy(), words, np.int64(1) << bit_numbers)


def join_master(
    parts: SplitMaster, out: torch.Tensor, spare: torch.Tensor | None = None
) -> torch.Tensor:
    """Rebuild the fp32 master in `out`, a flat contiguous tensor, and return it.

    `spare` is room for as many fp32 that may be overwritten; taken afresh when None.
    """
    out.copy_(parts.high)
    bits = out.view(torch.int32)
    wide_low = (torch.empty_like(out) if spare is None else spare).view(torch.int32)
    bits.add_(wide_low.copy_(parts.low))
    if isinstance(out, FakeTensor):
        return out
    ties = parts.ties.numpy()
    words = np.flatnonzero(ties)
    if words.size:
        bit_numbers = np.arange(TIES_PER_WORD)
        is_set = (ties[words, np.newaxis] >> bit_numbers) & 1 == 1
        rounded_down = (words[:, np.newaxis] * TIES_PER_WORD + bit_numbers)[is_set]
        bits.numpy()[rounded_down] += 1 << 16
    return out
