"""Vector instructions for sparse products, as a builder of LLVM's language writes them.

Activations are tiled: 64 tokens of one feature lie side by side. Addresses are bytes.

Sums are taken in the same order whatever the number of lanes, so that wider vectors give the same
bits; only `NARROW` ones round a product before it is added, since not every processor can do both
at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from platform import machine
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils

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
