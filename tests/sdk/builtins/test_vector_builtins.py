"""Each vector operation against numpy: every pair of edge values, in every form of its operands."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from tests.sdk.builtins.native_pe import BOTH, literals, run
from tests.tables import case

Numbers = NDArray[Any]

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "i16": np.dtype(np.int16),
    "u16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
}
_FLOATS: Final = (0.0, -0.0, 1.0, -1.5, 1 / 3, np.nan, np.inf, -np.inf)
_EDGES: Final[dict[str, tuple[float, ...]]] = {
    # Largest and smallest finite ones, one past a rounding step, one past the range of i16.
    "f16": (*_FLOATS, 65504.0, -65504.0, 6e-8, -6.09e-5, 2049.0, -32769.0),
    "f32": (*_FLOATS, 3.4028235e38, -3e38, 1.4e-45, -1.1e-38, 16777217.0, -65520.0, 32767.5),
    "i16": (0, 1, -1, 2, 15, 16, 17, -32768, 32767, 0x5555),
    "u16": (0, 1, 2, 15, 16, 17, 0x7FFF, 0x8000, 0xFFFF, 0x5555),
    "i32": (0, 1, -1, -(2**31), 2**31 - 1, 0x12345678),
    "u32": (0, 1, 2**31, 2**32 - 1, 0xDEADBEEF, 0xFFFF),
}


def _truncate(x: Numbers) -> Numbers:
    """Toward zero, saturating; NaN becomes 0."""
    clipped = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0)), -32768, 32767)
    return clipped.astype(np.int16)


def _shifted(by: Callable[..., Numbers], signed: bool) -> Callable[..., Numbers]:
    """Shifts by the width or more leave zeros, or signs."""

    def shift(x: Numbers, count: Numbers) -> Numbers:
        wide = (x.view(np.int16) if signed else x.view(np.uint16)).astype(np.int64)
        return by(wide, np.minimum(count.view(np.uint16), 16).astype(np.int64)).astype(np.uint16)

    return shift


def _counted(count: Callable[[str], int]) -> Callable[[Numbers], Numbers]:
    """Counts of the 16 binary digits."""
    return lambda x: np.array([count(f"{int(v):016b}") for v in x.view(np.uint16)], np.uint16)


def _fused(acc: Numbers, x: Numbers, y: Numbers) -> Numbers:
    """Rounded once; a long double holds what these sums need."""
    total = acc.astype(np.longdouble) + x.astype(np.longdouble) * y.astype(np.longdouble)
    return total.astype(acc.dtype)


def _scaled(x: Numbers, exponent: Numbers) -> Numbers:
    power = np.clip(exponent.astype(np.int64), -600, 600)
    return np.ldexp(x.astype(np.float64), power).astype(x.dtype)


def _same(x: Numbers) -> Numbers:
    return x


REFERENCE: Final[dict[str, Callable[..., Numbers]]] = {
    **dict.fromkeys(("mov16", "mov32", "fmovh", "fmovs"), _same),
    "add16": np.add,
    "sub16": np.subtract,
    "and16": np.bitwise_and,
    "or16": np.bitwise_or,
    "xor16": np.bitwise_xor,
    "sll16": _shifted(np.left_shift, signed=False),
    "slr16": _shifted(np.right_shift, signed=False),
    "sar16": _shifted(np.right_shift, signed=True),
    "clz": _counted(lambda digits: len(digits) - len(digits.lstrip("0"))),
    "ctz": _counted(lambda digits: len(digits) - len(digits.rstrip("0"))),
    "popcnt": _counted(lambda digits: digits.count("1")),
    **dict.fromkeys(("faddh", "fadds"), np.add),
    **dict.fromkeys(("fsubh", "fsubs"), np.subtract),
    **dict.fromkeys(("fmulh", "fmuls"), np.multiply),
    **dict.fromkeys(("fmaxh", "fmaxs"), np.fmax),
    **dict.fromkeys(("fnegh", "fnegs"), np.negative),
    **dict.fromkeys(("fabsh", "fabss"), np.abs),
    **dict.fromkeys(("fmach", "fmacs", "fmachs"), _fused),
    "faddhs": lambda x, y: x + y.astype(np.float32),
    "fh2s": lambda x: x.astype(np.float32),
    "fs2h": lambda x: x.astype(np.float16),
    **dict.fromkeys(("fh2xp16", "fs2xp16"), _truncate),
    # A descriptor has no sign, so the bits of a u16 are read as those of an i16.
    "xp162fh": lambda x: x.view(np.int16).astype(np.float16),
    "xp162fs": lambda x: x.view(np.int16).astype(np.float32),
    **dict.fromkeys(("fscaleh", "fscales"), _scaled),
}
"""What each operation computes, written with numpy alone."""

_ANY: Final = {"any16": ("i16", "u16"), "any32": ("i32", "u32"), "i16": ("i16", "u16")}


@dataclass(frozen=True)
class Case:
    """An operation on elements of some types; destination first."""

    op: str
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return "-".join((self.op, *self.kinds))

    @property
    def sources(self) -> list[Numbers]:
        """Every combination of edge values of the first two sources; the third follows."""
        edges = [np.array(_EDGES[kind]).astype(DTYPES[kind]) for kind in self.kinds[1:]]
        grid = np.meshgrid(*edges[:2], indexing="ij")
        columns = [side.ravel() for side in grid]
        third = [np.resize(edge[1:], columns[0].size) for edge in edges[2:]]
        return [*columns, *third]


def _cases() -> list[Case]:
    """Each operation with every type that its operands may have."""
    found = []
    for name, op in VECTOR_OPS.items():
        kinds = (op.destination, *op.sources)
        has_choice = op.name.startswith("xp") or op.destination.startswith("any")
        for choice in (0, 1) if has_choice else (0,):
            taken = [_ANY[kind][choice] if kind in _ANY else kind for kind in kinds]
            found.append(Case(name, tuple(taken)))
    return found


CASES: Final = _cases()
NOWHERE_ELSE: Final = ("fmovs", "fscales")


def _operand(name: str, kind: str, values: Numbers | None, size: int) -> str:
    """An array and its descriptor; arrays of given values hold their bits."""
    access = f".{{ .tensor_access = |i|{{{size}}} -> {name}[i] }}"
    view = f"const {name}_dsd = @get_dsd(mem1d_dsd, {access});\n"
    if values is None:
        return f"var {name}: [{size}]{kind};\n{view}"
    unsigned = f"u{8 * values.itemsize}"
    bits = literals(values.view(np.dtype(f"u{values.itemsize}")))
    return f"var {name} = [{size}]{unsigned}{{ {bits} }};\n{view}"


def _program(case: Case) -> str:
    """All forms of the operation: descriptors, a scalar in each place, a scalar destination."""
    target, *kinds = case.kinds
    named = dict(zip("abc", zip(kinds, case.sources, strict=True), strict=False))
    size = case.sources[0].size
    text = f"var last: {target};\n" + _operand("all", target, None, size)
    body = [f"@{case.op}(all_dsd, {', '.join(f'{name}_dsd' for name in named)});"]
    scalars = {name: f"@bitcast({kind}, {name}[INDEX])" for name, (kind, _) in named.items()}
    for name, (kind, values) in named.items():
        text += _operand(name, kind, values, size) + _operand(f"with_{name}", target, None, size)
        scalar = scalars[name].replace("INDEX", str(size // 2))
        operands = [scalar if other == name else f"{other}_dsd" for other in named]
        if len(kinds) > 1:
            body.append(f"@{case.op}(with_{name}_dsd, {', '.join(operands)});")
    one_of_each = ", ".join(scalars.values()).replace("INDEX", str(size // 3))
    body.append(f"@{case.op}(&last, {one_of_each});")
    return f"{text}fn main() void {{ {' '.join(body)} }}\n"


def _expected(case: Case, sources: list[Numbers]) -> Numbers:
    with np.errstate(all="ignore"):
        return np.asarray(REFERENCE[case.op](*sources)).view(DTYPES[case.kinds[0]])


def assert_equal(case: Case, got: Numbers, sources: list[Numbers], form: str) -> None:
    """The same numbers; zeros with their signs, but for a maximum; NaN of any bits."""
    want = _expected(case, sources)
    np.testing.assert_array_equal(got, want, form)
    if case.kinds[0].startswith("f") and not case.op.startswith("fmax"):
        is_number = ~np.isnan(want)
        signs = np.signbit(got)[is_number], np.signbit(want)[is_number]
        np.testing.assert_array_equal(*signs, form)


def _forms(case: Case) -> Iterator[tuple[str, list[Numbers]]]:
    """Where each form leaves its results, and of what they are made."""
    yield "all", case.sources
    for place, name in enumerate("abc"[: len(case.kinds) - 1] if len(case.kinds) > 2 else ""):
        sources = case.sources
        sources[place] = np.full_like(sources[place], sources[place][sources[place].size // 2])
        yield f"with_{name}", sources
    at = case.sources[0].size // 3
    yield "last", [values[at : at + 1] for values in case.sources]


def _rows() -> list[ParameterSet]:
    """One in four runs by default, and those of operations that no other default test computes."""
    return [
        case(
            one,
            arch,
            by_default=(number + place) % 4 == 0 or (one.op in NOWHERE_ELSE and place == 0),
            id=f"{one}-{arch}",
        )
        for (number, one), (place, arch) in product(enumerate(CASES), enumerate(BOTH))
    ]


@pytest.mark.parametrize(("case", "arch"), _rows())
def test_an_operation_computes_what_numpy_computes_in_every_form(case: Case, arch: Arch) -> None:
    memory = run(_program(case), arch)
    for name, sources in _forms(case):
        assert_equal(case, memory.read(name, DTYPES[case.kinds[0]]), sources, name)


def test_every_operation_has_a_reference_in_numpy() -> None:
    assert REFERENCE.keys() == VECTOR_OPS.keys()
