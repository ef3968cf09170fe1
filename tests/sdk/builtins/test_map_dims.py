"""`@map` over descriptors of several dimensions, against numpy."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import Arch
from tests.sdk.builtins import native_pe
from tests.sdk.csl.machine import one_pe
from tests.tables import checkerboard

SIZE = 60


@dataclass(frozen=True)
class Access:
    """Extents and the factor of each index, outermost first."""

    extents: tuple[int, ...]
    factors: tuple[int, ...]
    offset: int = 0

    @property
    def text(self) -> str:
        names = "ijkl"[: len(self.extents)]
        place = " + ".join(f"{f} * {n}" for f, n in zip(self.factors, names, strict=True))
        indices, extents = ",".join(names), ",".join(map(str, self.extents))
        return f"|{indices}|{{{extents}}} -> ARRAY[{place} + {self.offset}]"

    @property
    def places(self) -> NDArray[np.int64]:
        steps = product(*map(range, self.extents))
        return np.array([np.dot(step, self.factors) + self.offset for step in steps], np.int64)


ACCESSES = [
    Access((3, 4), (10, 2), 1),
    Access((2, 3, 4), (-20, 6, 1), 25),
    Access((3, 1, 2, 2), (16, 5, -4, 3), 9),
    Access((7,), (-3,), 20),
    Access((5, 5), (2, 1)),
    Access((2, 0, 3), (9, 3, 1)),
]
SOURCE = """
var a: [SIZE]KIND = @zeros([SIZE]KIND);
var b: [SIZE]KIND = @zeros([SIZE]KIND);
var one: KIND = 0;
var calls: KIND = 0;
MUTABILITY from = @get_dsd(mem4d_dsd, .{ .tensor_access = FROM });
MUTABILITY to = @get_dsd(mem4d_dsd, .{ .tensor_access = TO });
fn next(x: KIND) KIND { calls += 1; return x + calls; }
fn main() void {
  for (@range(u16, SIZE)) |i| { a[i] = one; one += 3; }
  @map(next, from, to);
}
"""


def source_of(source: Access, target: Access, kind: str, mutability: str) -> str:
    text = SOURCE.replace("FROM", source.text.replace("ARRAY", "a"))
    text = text.replace("TO", target.text.replace("ARRAY", "b"))
    return text.replace("SIZE", str(SIZE)).replace("KIND", kind).replace("MUTABILITY", mutability)


def wanted(source: Access, target: Access) -> NDArray[np.int64]:
    a, b = 3 * np.arange(SIZE), np.zeros(SIZE, np.int64)
    pairs = zip(source.places, target.places, strict=False)
    for number, (read, written) in enumerate(pairs, 1):
        b[written] = a[read] + number
    return b


@pytest.mark.parametrize(
    ("number", "mutability"), checkerboard(range(len(ACCESSES)), ("const", "var"))
)
def test_elements_come_in_the_order_of_the_indices(
    tmp_path: Path, number: int, mutability: str
) -> None:
    source, target = ACCESSES[number], ACCESSES[number - 1]
    kind, dtype = (("i16", "i2"), ("u32", "u4"))[number % 2]
    text = source_of(source, target, kind, mutability)
    expected = wanted(source, target).tolist()
    assert one_pe.ran(tmp_path, text).read("b", dtype).tolist() == expected
    assert native_pe.run(text, list(Arch)[number % 2]).read("b", dtype).tolist() == expected
