"""What compiled functions call in their innermost loops.

`lanes` is a constant of the code in which these stand: 16, 8 or 4. Addresses are bytes, starts and
ends are places in the lists of columns and values.
"""

from typing import Any, Final

from numba import types
from numba.extending import intrinsic

from openwafer.training.sparsity.kernels.emission import (
    FLOAT,
    FOLD,
    NUMBER,
    TILE,
    WORD,
    Emitter,
)

MOST_SUMS: Final = 8
"""Vectors that are summed at once; with more of them, narrow processors run out of registers."""
ROW: Final = 16
"""Lanes that a sum over the tokens of a tile keeps apart until its end."""
TILE_LINES: Final = 4

Words = types.CPointer(types.int64)
Numbers = types.CPointer(types.int32)
Floats = types.CPointer(types.float32)
Two = types.UniTuple(types.int64, 2)
Three = types.UniTuple(types.int64, 3)


def _pointer(kind: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.int64), generate


@intrinsic
def words_at(_typing: Any, _address: Any) -> Any:
    """A pointer to 64-bit integers."""
    return _pointer(Words)


@intrinsic
def numbers_at(_typing: Any, _address: Any) -> Any:
    """A pointer to 32-bit integers."""
    return _pointer(Numbers)


@intrinsic
def floats_at(_typing: Any, _address: Any) -> Any:
    """A pointer to 32-bit floats."""
    return _pointer(Floats)


@intrinsic(prefer_literal=True)
def begin_products(
    _typing: Any, lanes: Any, _where: Any, _lists: Any, _bounds: Any, _number: Any
) -> Any:
    """Set 64 sums to a number, and add products to them as :func:`add_products` does."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emit = Emitter(builder, lanes.literal_value)
        number = emit.splat(args[4])
        _add_products(emit, args[1:4], lambda _sums, numbers: [number for _ in numbers])
        return context.get_dummy_value()

    return types.void(lanes, Three, Two, Two, types.float32), generate


@intrinsic(prefer_literal=True)
def add_products(_typing: Any, lanes: Any, _where: Any, _lists: Any, _bounds: Any) -> Any:
    """Add products of values with the tiles of their columns to 64 sums, one after the other.

    `where` is the address of the sums, of the tiles, and of sums that are needed soon; `lists`
    those of the columns (16 bits) and the values; `bounds` the first place and the one behind.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emit = Emitter(builder, lanes.literal_value)
        _add_products(emit, args[1:4], emit.load_vectors)
        return context.get_dummy_value()

    return types.void(lanes, Three, Two, Two), generate


def _add_products(emit: Emitter, args: Any, begun: Any) -> None:
    (sums, tiles, soon), (columns, values), bounds = (_unpacked(emit, each) for each in args)
    emit.prefetch(soon, TILE_LINES)
    vectors = TILE // emit.lanes
    for first in range(0, vectors, MOST_SUMS):
        numbers = range(first, min(vectors, first + MOST_SUMS))

        def add_one(place: Any, held: Any, numbers: Any = numbers) -> Any:
            value = emit.splat(emit.load(emit.number_at(values, place), FLOAT))
            tile = emit.load_vectors(emit.tile_of(tiles, columns, place), numbers)
            return [emit.add_product(value, x, s) for x, s in zip(tile, held, strict=True)]

        _, totals = emit.loop(bounds, 1, begun(sums, numbers), add_one)
        for number, total in zip(numbers, totals, strict=True):
            emit.store(total, sums, 4 * emit.lanes * number)


@intrinsic(prefer_literal=True)
def add_sums_over_tokens(_typing: Any, lanes: Any, _where: Any, _lists: Any, _bounds: Any) -> Any:
    """Add to each total the products of a row's tile with the tile of its column, over 64 tokens.

    `where` is the address of the row's tile, of the columns' tiles, and of a row that is needed
    soon; `lists` those of the columns (16 bits) and the totals; `bounds` as above.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _add_sums_over_tokens(Emitter(builder, lanes.literal_value), args[1:])
        return context.get_dummy_value()

    return types.void(lanes, Three, Two, Two), generate


def _add_sums_over_tokens(emit: Emitter, args: Any) -> None:
    (row, tiles, soon), (columns, totals), (start, end) = (_unpacked(emit, each) for each in args)
    builder, numbers = emit.builder, range(TILE // emit.lanes)
    row_vectors = emit.load_vectors(row, numbers)
    emit.prefetch(soon, TILE_LINES)

    def sum_of(place: Any) -> list[Any]:
        tile = emit.load_vectors(emit.tile_of(tiles, columns, place), numbers)
        return _kept_apart(emit, row_vectors, tile)

    def add(sums: Any, place: Any) -> None:
        address = emit.number_at(totals, place)
        emit.store(builder.fadd(emit.load(address, sums.type), sums), address)

    def four_sums(place: Any, _held: Any) -> Any:
        add(emit.fold([sum_of(builder.add(place, WORD(n))) for n in range(FOLD)]), place)
        return []

    def one_sum(place: Any, _held: Any) -> Any:
        add(builder.extract_element(emit.fold([sum_of(place)] * FOLD), NUMBER(0)), place)
        return []

    rest, _ = emit.loop((start, builder.sub(end, WORD(FOLD - 1))), FOLD, [], four_sums)
    emit.loop((rest, end), 1, [], one_sum)


def _kept_apart(emit: Emitter, row: Any, tile: Any) -> list[Any]:
    """Products of two tiles summed to 16 lanes, from the first tokens to the last."""
    width = ROW // emit.lanes
    sums = [emit.builder.fmul(row[n], tile[n]) for n in range(width)]
    for n in range(width, len(row)):
        sums[n % width] = emit.add_product(row[n], tile[n], sums[n % width])
    return sums


def _unpacked(emit: Emitter, several: Any) -> Any:
    return [emit.builder.extract_value(several, n) for n in range(several.type.count)]


@intrinsic(prefer_literal=True)
def transpose_square(_typing: Any, lanes: Any, _source: Any, _target: Any) -> Any:
    """Copy a square of `lanes` rows and columns with both exchanged.

    Source and target are the address of the first row and the bytes from one row to the next.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emit = Emitter(builder, lanes.literal_value)
        (source, source_step), (target, target_step) = (_unpacked(emit, each) for each in args[1:])
        numbers = range(emit.lanes)
        addresses = [builder.add(source, builder.mul(source_step, WORD(n))) for n in numbers]
        rows = emit.transpose([emit.load(address, emit.vector) for address in addresses])
        for n, row in zip(numbers, rows, strict=True):
            emit.store(row, builder.add(target, builder.mul(target_step, WORD(n))))
        return context.get_dummy_value()

    return types.void(lanes, Two, Two), generate
