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

import torch

from openwafer.training.store.update_rules.rule import StateSpec

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
    parts.high.copy_(master)
    bits = master.view(torch.int32)
    parts.low.copy_(bits)
    parts.ties.zero_()
    ties = (parts.low == _TIE).nonzero().squeeze(1)
    if ties.numel():
        rounded_down = ties[(bits[ties] >> 16) & 1 == 0]
        words = rounded_down // TIES_PER_WORD
        parts.ties.index_add_(0, words, 1 << (rounded_down % TIES_PER_WORD))


def join_master(parts: SplitMaster, out: torch.Tensor) -> torch.Tensor:
    """Rebuild the fp32 master in `out`, a flat contiguous tensor, and return it."""
    out.copy_(parts.high)
    bits = out.view(torch.int32)
    bits.add_(parts.low)
    words = parts.ties.nonzero().squeeze(1)
    if words.numel():
        places = torch.arange(TIES_PER_WORD)
        is_set = (parts.ties[words].unsqueeze(1) >> places) & 1 == 1
        bits[(words.unsqueeze(1) * TIES_PER_WORD + places)[is_set]] += 1 << 16
    return out
