"""Chunks are as long as suits the network."""

import pytest

from openwafer.training.collectives.chunks import chunk_bytes_at


@pytest.mark.parametrize(
    ("bytes_per_second", "chunk_bytes"),
    [(0.0, 1 << 16), (4.8e6, 1 << 16), (12.5e6, 1 << 17), (125e6, 1 << 20), (12.5e9, 1 << 20)],
)
def test_a_chunk_is_on_its_way_for_a_fiftieth_of_a_second_at_most(
    bytes_per_second: float, chunk_bytes: int
) -> None:
    assert chunk_bytes_at(bytes_per_second) == chunk_bytes
