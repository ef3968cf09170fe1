"""Vector instructions for sparse products, as a builder of LLVM's language writes them.

Activations are tiled: 64 tokens of one feature lie side by side. Addresses are bytes, starts and
ends are places in the lists of columns and values. `lanes` is a constant of the code that these
instructions stand in: 16, 8 or 4.

Sums are taken in the same order whatever the number of lanes, so that wider vectors give the same
bits; only `NARROW` ones round a product before it is added, since not every processor can do both
at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from platform import machine
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

TILE: Final = 64
TILE_BYTES: Final = 4 * TILE
NARROW: Final = 4
FOLD: Final = 4
"""Sums over tokens that are folded in one go, and lanes of what that gives."""
INTERLEAVED: Final = ((0, 0), (1, 0), (0, 1), (1, 1))
JOINED: Final = ((0, 0), (0, 1), (1, 0), (1, 1))

FLOAT: Final = ir.FloatType()
BYTE: Final = ir.IntType(8)
HALF_WORD: Final = ir.IntType(16)
NUMBER: Final = ir.IntType(32)
WORD: Final = ir.IntType(64)


@dataclass(frozen=True)
class Emitter:
    """Writes instructions on vectors of so many lanes."""

    builder: Any
    lanes: int

    @property
    def vector(self) -> Any:
        """Type of one vector."""
        return ir.VectorType(FLOAT, self.lanes)

    def load(self, address: Any, kind: Any, offset: int = 0) -> Any:
        """What lies at an address, so many bytes behind it."""
        place = self.builder.add(address, WORD(offset))
        place = self.builder.inttoptr(place, kind.as_pointer())
        return self.builder.load(place, align=2 if kind is HALF_WORD else 4)

    def store(self, value: Any, address: Any, offset: int = 0) -> None:
        """Write to an address, so many bytes behind it."""
        place = self.builder.add(address, WORD(offset))
        self.builder.store(value, self.builder.inttoptr(place, value.type.as_pointer()), align=4)

    def load_vectors(self, address: Any, numbers: Sequence[int]) -> list[Any]:
        """Those of the vectors that lie side by side at an address."""
        return [self.load(address, self.vector, 4 * self.lanes * n) for n in numbers]

    def prefetch(self, address: Any, lines: int) -> None:
        """Ask memory for lines of 64 bytes that are needed soon."""
        kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), NUMBER, NUMBER, NUMBER])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        for line in range(lines):
            place = self.builder.add(address, WORD(64 * line))
            place = self.builder.inttoptr(place, BYTE.as_pointer())
            # To be read, with the best place in the cache, as data.
            self.builder.call(function, [place, NUMBER(0), NUMBER(3), NUMBER(1)])

    def splat(self, number: Any) -> Any:
        """A vector with one number in all lanes."""
        empty = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(empty, number, NUMBER(0))
        return self.shuffle(first, empty, [0] * self.lanes)

    def shuffle(self, one: Any, other: Any, lanes: Sequence[int]) -> Any:
        """Lanes of two vectors, numbered through."""
        chosen = ir.Constant(ir.VectorType(NUMBER, len(lanes)), [*lanes])
        return self.builder.shuffle_vector(one, other, chosen)

    def add_product(self, one: Any, other: Any, total: Any) -> Any:
        """`total + one * other`, rounded once where the processor can."""
        if self.lanes == NARROW and machine() not in ("aarch64", "arm64"):
            return self.builder.fadd(total, self.builder.fmul(one, other))
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fma.v{self.lanes}f32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [one, other, total])

    def tile_of(self, tiles: Any, columns: Any, place: Any) -> Any:
        """Address of the tile of the column at a place of a list of 16-bit numbers."""
        address = self.builder.add(columns, self.builder.shl(place, WORD(1)))
        column = self.builder.zext(self.load(address, HALF_WORD), WORD)
        return self.builder.add(tiles, self.builder.mul(column, WORD(TILE_BYTES)))

    def number_at(self, numbers: Any, place: Any) -> Any:
        """Address of a place of a list of 32-bit numbers."""
        return self.builder.add(numbers, self.builder.shl(place, WORD(2)))

    def loop(
        self,
        bounds: tuple[Any, Any],
        step: int,
        carried: Sequence[Any],
        body: Callable[[Any, Sequence[Any]], Sequence[Any]],
    ) -> tuple[Any, Sequence[Any]]:
        """Repeat a body from the first bound on while it is below the second.

        The body takes the place and what the turn before it left; so does what follows.
        """
        builder, before = self.builder, self.builder.block
        head, turn, end = (builder.append_basic_block(name) for name in ("head", "turn", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        place = builder.phi(WORD)
        held = [builder.phi(value.type) for value in carried]
        for phi, value in zip([place, *held], [bounds[0], *carried], strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", place, bounds[1]), turn, end)
        builder.position_at_end(turn)
        left = body(place, held)
        following = builder.add(place, WORD(step))
        for phi, value in zip([place, *held], [following, *left], strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(end)
        return place, held

    def fold(self, sums: Sequence[Sequence[Any]]) -> Any:
        """Totals of four sums as one vector; each sum comes as 16 lanes in as many vectors."""
        parts = [self._fold_quads(vectors) for vectors in zip(*sums, strict=True)]
        while len(parts) > 1:
            half = len(parts) // 2
            halves = zip(parts[:half], parts[half:], strict=True)
            parts = [self.builder.fadd(one, other) for one, other in halves]
        total, width = parts[0], self.lanes
        while width > FOLD:
            width //= 2
            low, high = range(width), range(width, 2 * width)
            halves_of_total = self.shuffle(total, total, low), self.shuffle(total, total, high)
            total = self.builder.fadd(*halves_of_total)
        return total

    def _fold_quads(self, vectors: Sequence[Any]) -> Any:
        """Of four vectors one, whose every four lanes are the sums of theirs."""
        one, two, three, four = vectors
        pairs = self._fold_pair(one, two, INTERLEAVED), self._fold_pair(three, four, INTERLEAVED)
        return self._fold_pair(*pairs, JOINED)

    def _fold_pair(self, one: Any, other: Any, order: Sequence[tuple[int, int]]) -> Any:
        """Lanes 0 and 1 of every four, plus lanes 2 and 3, of two vectors in an order."""
        chosen = [
            vector * self.lanes + four + lane
            for four in range(0, self.lanes, FOLD)
            for vector, lane in order
        ]
        low = self.shuffle(one, other, chosen)
        high = self.shuffle(one, other, [lane + 2 for lane in chosen])
        return self.builder.fadd(low, high)

    def transpose(self, rows: Sequence[Any]) -> list[Any]:
        """A square of as many rows as lanes, with rows and columns exchanged."""
        half = self.lanes // 2
        low = [lane for n in range(half) for lane in (n, n + self.lanes)]
        high = [lane + half for lane in low]
        rows = [*rows]
        for _ in range(self.lanes.bit_length() - 1):
            pairs = [*zip(rows[:half], rows[half:], strict=True)]
            rows = [self.shuffle(*pair, lanes) for pair in pairs for lanes in (low, high)]
        return rows


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
