"""How a copy is cut into pieces that pass through a ring of chunks."""

from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.stream.device.cuda import RingShape

SHAPES = st.builds(RingShape, st.integers(1, 50), st.integers(1, 6))
SIZES = st.integers(0, 500)


@given(SHAPES, SIZES, st.integers(0, 5))
def test_the_pieces_are_all_the_bytes_once_and_in_order(
    shape: RingShape, num_bytes: int, first: int
) -> None:
    pieces = shape.pieces(num_bytes, first % shape.num_chunks)
    assert [byte for p in pieces for byte in range(p.start, p.end)] == list(range(num_bytes))


@given(SHAPES, SIZES)
def test_every_piece_but_the_last_fills_its_chunk(shape: RingShape, num_bytes: int) -> None:
    sizes = [piece.end - piece.start for piece in shape.pieces(num_bytes, 0)]
    assert all(size == shape.chunk_bytes for size in sizes[:-1])
    assert all(0 < size <= shape.chunk_bytes for size in sizes)


@given(SHAPES, SIZES, st.integers(0, 5))
def test_a_chunk_comes_again_only_after_all_others(
    shape: RingShape, num_bytes: int, first: int
) -> None:
    first %= shape.num_chunks
    chunks = [piece.chunk for piece in shape.pieces(num_bytes, first)]
    assert chunks == [(first + turn) % shape.num_chunks for turn in range(len(chunks))]


@given(SHAPES)
def test_a_ring_is_its_chunks_and_nothing_else(shape: RingShape) -> None:
    assert shape.num_bytes == shape.chunk_bytes * shape.num_chunks
