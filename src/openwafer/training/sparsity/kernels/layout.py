"""Activations from the plain layout to the tiled one, and small moves beside the products."""

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
)
from openwafer.training.sparsity.kernels.inner_loops import (
    floats_at,
    numbers_at,
    transpose_square,
)

LAYOUT: Final = record_of(("tokens", "features", "plain", "tiled"))
"""`plain` is the address of `[tokens, features]`, `tiled` of `[tiles, features, 64]`."""

MOVE: Final = record_of(("count", "order", "source", "target"))

PIECE: Final = 1 << 15
"""Numbers of an item."""


@functools.cache
def tile_entry(lanes: int) -> Any:
    """Copies plain activations to tiled ones; an item is a tile. Tokens that are none are 0."""
    return _tile_entry(STAMP, lanes)


@functools.cache
def gather_entry() -> Any:
    """Copies `source[order[n]]` to `target[n]`; an item is a piece."""
    return _gather_entry(STAMP)


@functools.cache
def scatter_entry() -> Any:
    """Copies `source[n]` to `target[order[n]]`; an item is a piece."""
    return _scatter_entry(STAMP)


def _tile_entry(stamp: str, lanes: int) -> Any:
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


def _gather_entry(stamp: str) -> Any:
    @entry(MOVE)
    def gather(told: Any) -> None:
        len(stamp)
        move = carray(told, 1)[0]
        order, source, target = (
            numbers_at(move.order),
            floats_at(move.source),
            floats_at(move.target),
        )
        while True:
            item = take_item(told)
            if item >= move.num_items:
                return
            for place in range(item * PIECE, min(move.count, (item + 1) * PIECE)):
                target[place] = source[order[place]]

    return gather


def _scatter_entry(stamp: str) -> Any:
    @entry(MOVE)
    def scatter(told: Any) -> None:
        len(stamp)
        move = carray(told, 1)[0]
        order, source, target = (
            numbers_at(move.order),
            floats_at(move.source),
            floats_at(move.target),
        )
        while True:
            item = take_item(told)
            if item >= move.num_items:
                return
            for place in range(item * PIECE, min(move.count, (item + 1) * PIECE)):
                target[order[place]] = source[place]

    return scatter
