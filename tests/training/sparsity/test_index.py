"""A walk meets each kept position once, in the order that it says."""

import torch
from hypothesis import given
from torch import Tensor

from openwafer.training.sparsity.kernels.index import (
    Index,
    Walk,
    block_columns,
    most_words,
    walks_of,
)
from openwafer.training.sparsity.pattern import Pattern
from tests.training.sparsity.random_masks import masks, random_mask


def positions_of(walk: Walk) -> list[tuple[int, int]]:
    """Row and column of each kept position, in the order of the walk."""
    found = []
    for block in range(walk.block_starts.size - 1):
        panel, number = divmod(block, walk.num_blocks)
        for segment in range(*walk.block_starts[block : block + 2].tolist()):
            columns = walk.columns[slice(*walk.starts[segment : segment + 2])].tolist()
            row = panel * walk.panel_rows + int(walk.rows[segment])
            found += [(row, number * walk.block_columns + column) for column in columns]
    return found


@given(masks(max_rows=20))
def test_a_walk_meets_every_kept_position_in_its_order(mask: Tensor) -> None:
    walk, transposed = walks_of(Index.of(Pattern.from_mask(mask)).words)
    kept = [tuple(place) for place in mask.nonzero().tolist()]
    assert positions_of(walk) == [kept[place] for place in walk.order.tolist()]
    exchanged = [(row, column) for column, row in positions_of(transposed)]
    assert exchanged == [kept[place] for place in transposed.order.tolist()]
    assert sorted(walk.order) == sorted(transposed.order) == [*range(len(kept))]


def test_rows_beyond_a_panel_make_another_one() -> None:
    for shape in ((1100, 40), (40, 2100), (1030, 1030), (3, 65_600)):
        mask = random_mask(*shape, 0.99)
        walk, transposed = walks_of(Index.of(Pattern.from_mask(mask)).words)
        assert (walk.num_panels, transposed.num_panels) == tuple(-(-size // 1024) for size in shape)
        kept = [tuple(place) for place in mask.nonzero().tolist()]
        assert positions_of(walk) == [kept[place] for place in walk.order.tolist()]
        exchanged = [(row, column) for column, row in positions_of(transposed)]
        assert exchanged == [kept[place] for place in transposed.order.tolist()]
        assert sorted(transposed.order.tolist()) == [*range(len(kept))]


def test_every_row_of_a_panel_begins_in_its_first_block() -> None:
    mask = random_mask(50, 2000, 0.99)
    walk, _ = walks_of(Index.of(Pattern.from_mask(mask)).words)
    first = walk.rows[walk.block_starts[0] : walk.block_starts[1]]
    assert sorted(first) == [*range(50)]


def test_equal_patterns_have_equal_words() -> None:
    pattern = Pattern.from_mask(random_mask(33, 401, 0.93))
    words = Index.of(pattern).words
    assert words.numel() == most_words(pattern.shape, pattern.num_kept)
    for _ in range(5):
        assert torch.equal(Index.of(pattern).words, words)


def test_segments_of_a_block_get_shorter() -> None:
    mask = random_mask(60, 500, 0.7)
    walk, _ = walks_of(Index.of(Pattern.from_mask(mask)).words)
    lengths = torch.from_numpy(walk.starts).diff()
    for start, end in zip(walk.block_starts[:-1], walk.block_starts[1:], strict=True):
        assert lengths[start:end].tolist() == sorted(lengths[start:end].tolist(), reverse=True)


def test_blocks_are_wider_where_fewer_positions_are_kept() -> None:
    widths = [block_columns((1024, 1024), int(share * 2**20)) for share in (0.5, 0.05, 0.01)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]
