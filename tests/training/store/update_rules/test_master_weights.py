"""A bf16 weight and its missing bits are an fp32 master."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.store.update_rules.update_pass import (
    LOW_BITS,
    TIE_BITS,
    SplitMaster,
    join_master,
    split_master,
    split_states,
)

_LOWS = (0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xABCD, 0xFFFF)


def _every_high_half(lows: tuple[int, ...] = _LOWS) -> torch.Tensor:
    """All 2^16 upper halves, each with these lower halves, as fp32."""
    highs = torch.arange(1 << 16, dtype=torch.int64)[:, None] << 16
    bits = (highs | torch.tensor(lows)).reshape(-1)
    return torch.where(bits < 1 << 31, bits, bits - (1 << 32)).to(torch.int32).view(torch.float32)


def _split(master: torch.Tensor) -> SplitMaster:
    low, ties = split_states(tuple(master.shape))
    parts = SplitMaster(
        torch.full(master.shape, 3.0, dtype=torch.bfloat16),
        torch.full(low.shape, 77, dtype=low.dtype),
        torch.full(ties.shape, -1, dtype=ties.dtype),
    )
    split_master(master, parts)
    return parts


def _rebuilt(master: torch.Tensor) -> torch.Tensor:
    return join_master(_split(master), torch.empty_like(master))


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_every_kind_of_number_is_rebuilt_bit_for_bit() -> None:
    master = _every_high_half()
    numbers = master[~master.isnan()]
    assert _same_bits(_rebuilt(numbers), numbers)


def test_a_nan_stays_a_nan() -> None:
    master = _every_high_half()
    nans = master[master.isnan()]
    assert bool(_rebuilt(nans).isnan().all())


def test_the_streamed_half_is_the_cast_of_a_resident_loop() -> None:
    master = _every_high_half()
    high = _split(master).high
    assert torch.equal(high.view(torch.int16), master.to(torch.bfloat16).view(torch.int16))


@pytest.mark.parametrize(
    ("bits", "high", "low", "ties"),
    [
        (0x00000000, 0x0000, 0, 0),
        (0x00008000, 0x0000, -0x8000, 1),  # a subnormal halfway to the next bf16, which is odd
        (0x3F808000, 0x3F80, -0x8000, 1),  # halfway, down to even
        (0x3F818000, 0x3F82, -0x8000, 0),  # halfway, up to even
        (0x3F80FFFF, 0x3F81, -1, 0),
        (0x7F7FFFFF, 0x7F80, -1, 0),  # the largest number rounds to infinity
        (0x7F800000, 0x7F80, 0, 0),
        (0x40490FDB, 0x4049, 0x0FDB, 0),
    ],
)
def test_the_three_arrays_of_one_weight(bits: int, high: int, low: int, ties: int) -> None:
    parts = _split(torch.tensor([bits], dtype=torch.int32).view(torch.float32))
    assert parts.high.view(torch.int16).item() == high
    assert (parts.low.item(), parts.ties.item()) == (low, ties)


def test_negative_zero_keeps_its_sign() -> None:
    assert torch.signbit(_rebuilt(torch.tensor([-0.0])))


@given(
    st.lists(st.tuples(st.integers(0, 0xFFFF), st.sampled_from(_LOWS)), min_size=1, max_size=200)
)
def test_ties_anywhere_among_others_are_told_apart(halves: list[tuple[int, int]]) -> None:
    bits = torch.tensor([(high << 16 | low) - (high >> 15 << 32) for high, low in halves])
    master = bits.to(torch.int32).view(torch.float32)
    master = torch.where(master.isnan(), 1.5, master)
    assert _same_bits(_rebuilt(master), master)


def test_weights_that_were_fp16_have_many_ties_and_are_rebuilt() -> None:
    master = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.float16).float()
    numbers = master[master.isfinite()]
    assert int(_split(numbers).ties.count_nonzero()) > 100
    assert _same_bits(_rebuilt(numbers), numbers)


def test_the_missing_bits_take_two_bytes_and_a_bit() -> None:
    specs = {spec.name: spec for spec in split_states((100, 7))}
    assert (specs[LOW_BITS].shape, specs[LOW_BITS].dtype) == ((100, 7), torch.int16)
    assert (specs[TIE_BITS].shape, specs[TIE_BITS].dtype) == ((11,), torch.int64)


@pytest.mark.slow
@pytest.mark.parametrize("sixteenth", range(-8, 8))
def test_all_numbers_are_rebuilt_bit_for_bit(sixteenth: int) -> None:
    length = 1 << 21
    for start in range(sixteenth << 28, (sixteenth + 1) << 28, length):
        bits = torch.arange(start, start + length, dtype=torch.int64).to(torch.int32)
        master = torch.where(bits.view(torch.float32).isnan(), 0.0, bits.view(torch.float32))
        assert _same_bits(_rebuilt(master), master)
