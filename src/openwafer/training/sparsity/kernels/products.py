"""The compiled code of the products with a walk: what it multiplies, and what it samples."""

import functools
from typing import Any, Final

from numba import carray

from openwafer.training.sparsity.kernels.emission import TILE, TILE_BYTES
from openwafer.training.sparsity.kernels.entry import (
    STAMP,
    entry,
    part,
    record_of,
    take_item,
    take_number,
)
from openwafer.training.sparsity.kernels.index import AHEAD
from openwafer.training.sparsity.kernels.inner_loops import (
    add_products,
    add_sums_over_tokens,
    begin_products,
    floats_at,
    numbers_at,
    words_at,
)
from openwafer.training.sparsity.kernels.layout import untile_tokens

WALK: Final = (
    *("rows", "columns", "panel_rows", "block_columns", "panels", "blocks"),
    *("block_starts", "segment_rows", "starts", "walked"),
)
"""A walk as sizes and addresses; `walked` are its columns."""

MULTIPLY: Final = record_of((*WALK, "tokens", "input", "values", "bias", "scratch", "output"))
"""`input` is tiled, `output` plain; `values` are in the walk's order, sums begin with `bias`.

`scratch` has a panel of tiled sums for each thread.
"""

SAMPLE: Final = record_of((*WALK, "tiles", "input", "gradient", "totals", "shares"))
"""`input` and `gradient` (of the output) are tiled, `totals` are in the walk's order.

`shares` has five numbers for each item: its panel, first block, block behind its last, and which
part of so many of each block's segments.
"""


SHARE_NUMBERS: Final = 5


@functools.cache
def multiply_entry(lanes: int) -> Any:
    """Multiplies a walked matrix with an input; an item is a panel of the output for one tile."""
    return _multiply_entry(STAMP, lanes)


@functools.cache
def sample_entry(lanes: int) -> Any:
    """Adds `sum over tokens of gradient * input` at kept positions; an item is a share of them."""
    return _sample_entry(STAMP, lanes)


def _multiply_entry(stamp: str, lanes: int) -> Any:
    @entry(MULTIPLY)
    def multiply(told: Any) -> None:
        len(stamp)
        product = carray(told, 1)[0]
        sums = product.scratch + take_number(told) * product.panel_rows * TILE_BYTES
        while True:
            item = take_item(told)
            if item >= product.num_items:
                return
            tile, panel = item // product.panels, item % product.panels
            row = panel * product.panel_rows
            _multiply_panel(lanes, product, panel, (sums, tile))
            output = product.output + 4 * (tile * TILE * product.rows + row)
            tokens = min(TILE, product.tokens - tile * TILE)
            rows = min(product.panel_rows, product.rows - row)
            untile_tokens(lanes, sums, output, tokens, (rows, product.rows))

    return multiply


@part
def _multiply_panel(lanes: Any, product: Any, panel: Any, where: Any) -> None:
    sums, tile = where
    block_starts, starts = numbers_at(product.block_starts), numbers_at(product.starts)
    rows = numbers_at(product.segment_rows)
    bias = floats_at(product.bias + 4 * panel * product.panel_rows)
    lists = product.walked, product.values
    for number in range(product.blocks):
        block = panel * product.blocks + number
        tiles = product.input + TILE_BYTES * (
            tile * product.columns + number * product.block_columns
        )
        for segment in range(block_starts[block], block_starts[block + 1]):
            at = sums + rows[segment] * TILE_BYTES
            soon = sums + rows[segment + AHEAD] * TILE_BYTES
            bounds = starts[segment], starts[segment + 1]
            if number == 0:
                begin_products(lanes, (at, tiles, soon), lists, bounds, bias[rows[segment]])
            else:
                add_products(lanes, (at, tiles, soon), lists, bounds)


def _sample_entry(stamp: str, lanes: int) -> Any:
    @entry(SAMPLE)
    def sample(told: Any) -> None:
        len(stamp)
        product = carray(told, 1)[0]
        while True:
            item = take_item(told)
            if item >= product.num_items:
                return
            share = words_at(product.shares + 8 * SHARE_NUMBERS * item)
            for tile in range(product.tiles):
                for number in range(share[1], share[2]):
                    _sample_block(lanes, product, share, (tile, number))

    return sample


@part
def _sample_block(lanes: Any, product: Any, share: Any, where: Any) -> None:
    tile, number = where
    panel, part_of, parts = share[0], share[3], share[4]
    block = panel * product.blocks + number
    block_starts, starts = numbers_at(product.block_starts), numbers_at(product.starts)
    rows = numbers_at(product.segment_rows)
    lists = product.walked, product.totals
    tiles = product.input + TILE_BYTES * (tile * product.columns + number * product.block_columns)
    gradients = product.gradient + TILE_BYTES * (tile * product.rows + panel * product.panel_rows)
    first = block_starts[block]
    segments = block_starts[block + 1] - first
    for segment in range(
        first + segments * part_of // parts, first + segments * (part_of + 1) // parts
    ):
        at = gradients + rows[segment] * TILE_BYTES
        soon = gradients + rows[segment + AHEAD] * TILE_BYTES
        add_sums_over_tokens(
            lanes, (at, tiles, soon), lists, (starts[segment], starts[segment + 1])
        )
