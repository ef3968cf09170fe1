"""The compiled code of the products, which threads enter together: each takes items of the work.

An entry is told everything by one record, which its threads share. Which thread takes an item
changes nothing in what comes out.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import carray, cfunc, from_dtype, njit, types
from numba.extending import intrinsic

from openwafer.training.sparsity.kernels.index import AHEAD
from openwafer.training.sparsity.kernels.vectors import (
    TILE,
    TILE_BYTES,
    WORD,
    add_products,
    add_sums_over_tokens,
    begin_products,
    floats_at,
    numbers_at,
    transpose_square,
    words_at,
)

COUNTERS: Final = ("next_item", "next_thread")
HEAD: Final = ("counters", "taken", "num_items")


def record_of(names: Sequence[str]) -> "np.dtype[np.void]":
    """What an entry is told: items, and 64-bit sizes and addresses.

    `counters` is the address of what all threads count together, `taken` counts items (and once
    that none was left) for those threads only that are told this record.
    """
    return np.dtype([(name, np.int64) for name in (*HEAD, *names)])


def entry(record: "np.dtype[np.void]") -> Callable[[Callable[[Any], None]], Any]:
    """Compile a function of a pointer to such a record; its machine code is kept beside it."""
    return cfunc(types.void(types.CPointer(from_dtype(record))), cache=True)  # type: ignore[no-any-return]


def part(function: Callable[..., Any]) -> Any:
    """Compile a function as a part of entries, anew for each constant that one passes."""
    return njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def _count(builder: Any, cells: Any, number: int) -> Any:
    cell = builder.gep(cells, [WORD(number)])
    return builder.atomic_rmw("add", cell, WORD(1), "monotonic")


def _counter(name: str) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        told = builder.bitcast(args[0], WORD.as_pointer())
        if name == "next_item":
            _count(builder, told, HEAD.index("taken"))
        address = builder.load(builder.gep(told, [WORD(HEAD.index("counters"))]))
        counters = builder.inttoptr(address, WORD.as_pointer())
        return _count(builder, counters, COUNTERS.index(name))

    return generate


@intrinsic
def take_item(_typing: Any, told: Any) -> Any:
    """The number of an item that no other thread gets."""
    return types.int64(told), _counter("next_item")


@intrinsic
def take_number(_typing: Any, told: Any) -> Any:
    """A number that no other thread gets, from 0 on."""
    return types.int64(told), _counter("next_thread")


def _digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


STAMP: Final = _digest()
"""Changes with the text of this room.

numba looks at the time of an entry's file only; what an entry captures is part of its key, too.
"""


LAYOUT: Final = record_of(("tokens", "features", "plain", "tiled"))
"""`plain` is the address of `[tokens, features]`, `tiled` of `[tiles, features, 64]`."""

MOVE: Final = record_of(("count", "order", "source", "target"))

PIECE: Final = 1 << 15
"""Numbers of an item."""


@functools.cache
def tile_entry(lanes: int, stamp: str = STAMP) -> Any:
    """Copies plain activations to tiled ones; an item is a tile. Tokens that are none are 0."""

    @entry(LAYOUT)
    def tile(told: Any) -> None:
        len(stamp)
        layout = carray(told, 1)[0]
        while True:
            item = take_item(told)
            if item >= layout.num_items:
                return
            first = item * TILE
            plain = layout.plain + 4 * first * layout.features
            tiled = layout.tiled + item * layout.features * TILE_BYTES
            tile_tokens(lanes, plain, tiled, min(TILE, layout.tokens - first), layout.features)

    return tile


@part
def tile_tokens(lanes: Any, plain: Any, tiled: Any, tokens: Any, features: Any) -> None:
    """Lay the tokens of one tile side by side, feature after feature."""
    for token in range(0, TILE, lanes):
        squares = features // lanes if token + lanes <= tokens else 0
        row = plain + 4 * token * features
        column = tiled + 4 * token
        for square in range(squares):
            source = row + 4 * square * lanes
            target = column + square * lanes * TILE_BYTES
            transpose_square(lanes, (source, 4 * features), (target, TILE_BYTES))
        for number in range(token, token + lanes):
            given, kept = floats_at(plain + 4 * number * features), floats_at(tiled)
            for feature in range(squares * lanes, features):
                is_there = number < tokens
                kept[feature * TILE + number] = given[feature] if is_there else 0.0


@part
def untile_tokens(lanes: Any, tiled: Any, plain: Any, tokens: Any, widths: Any) -> None:
    """The reverse, for some features of a row of more: `widths` are how many, and of how many."""
    features, row_features = widths
    for token in range(0, tokens, lanes):
        squares = features // lanes if token + lanes <= tokens else 0
        row = plain + 4 * token * row_features
        column = tiled + 4 * token
        for square in range(squares):
            source = column + square * lanes * TILE_BYTES
            target = row + 4 * square * lanes
            transpose_square(lanes, (source, TILE_BYTES), (target, 4 * row_features))
        for number in range(token, min(tokens, token + lanes)):
            given, kept = floats_at(tiled), floats_at(plain + 4 * number * row_features)
            for feature in range(squares * lanes, features):
                kept[feature] = given[feature * TILE + number]


@functools.cache
def move_entry(*, is_gather: bool, stamp: str = STAMP) -> Any:
    """Copies `source[order[n]]` to `target[n]`, or `source[n]` to `target[order[n]]`, by pieces."""

    @entry(MOVE)
    def move(told: Any) -> None:
        len(stamp)
        move = carray(told, 1)[0]
        order = numbers_at(move.order)
        source, target = floats_at(move.source), floats_at(move.target)
        while True:
            item = take_item(told)
            if item >= move.num_items:
                return
            for place in range(item * PIECE, min(move.count, (item + 1) * PIECE)):
                if is_gather:
                    target[place] = source[order[place]]
                else:
                    target[order[place]] = source[place]

    return move


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
def multiply_entry(lanes: int, stamp: str = STAMP) -> Any:
    """Multiplies a walked matrix with an input; an item is a panel of the output for one tile."""

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


@functools.cache
def sample_entry(lanes: int, stamp: str = STAMP) -> Any:
    """Adds `sum over tokens of gradient * input` at kept positions; an item is a share of them."""

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
