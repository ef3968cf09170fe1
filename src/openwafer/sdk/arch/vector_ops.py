"""The vector operations: what they read and write, element by element, and how fast.

An operation computes ``destination[i] = f(source0[i], source1[i], source2[i])``. Sources follow the
order in which CSL writes them. Rates are elements a cycle in the best case and the constant cycles
of one operation, from published measurements (docs/design/wafer-model.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from openwafer.sdk.arch.generation import Arch

_ANY16: Final = "any16"
_ANY32: Final = "any32"


@dataclass(frozen=True)
class VectorOp:
    """One operation.

    Attributes:
        name: the builtin's name without ``@``.
        code: its number in images and in the element function; never reused.
        destination: element type, or ``any16`` and ``any32`` for moves and bit operations that
            take every type of that width.
        sources: element types of the sources.
        rates: elements a cycle by generation.
        overhead_cycles: constant part by generation.
    """

    name: str
    code: int
    destination: str
    sources: tuple[str, ...]
    rates: Mapping[Arch, float]
    overhead_cycles: Mapping[Arch, int]


def _speed(
    wse2: float, wse3: float, overhead: tuple[int, int] = (10, 15)
) -> tuple[Mapping[Arch, float], Mapping[Arch, int]]:
    rates = MappingProxyType({Arch.WSE2: wse2, Arch.WSE3: wse3})
    return rates, MappingProxyType({Arch.WSE2: overhead[0], Arch.WSE3: overhead[1]})


_MOVE16 = _speed(4, 8)
_MOVE32 = _speed(2, 4)
_ADD16 = _speed(4, 4, (12, 9))
_ADD32 = _speed(2, 2, (6, 9))
_FMA16 = _speed(4, 4, (13, 16))
_MUL32 = _speed(1, 0.5, (6, 17))
_FMACHS = _speed(2, 4, (13, 16))
_CONVERT = _speed(1, 4)
_SLOW = _speed(1, 1)

_TABLE = (
    ("mov16", 1, _ANY16, (_ANY16,), _MOVE16),
    ("mov32", 2, _ANY32, (_ANY32,), _MOVE32),
    ("fmovh", 3, "f16", ("f16",), _MOVE16),
    ("fmovs", 4, "f32", ("f32",), _MOVE32),
    ("add16", 5, _ANY16, (_ANY16, _ANY16), _ADD16),
    ("sub16", 7, _ANY16, (_ANY16, _ANY16), _ADD16),
    ("and16", 8, _ANY16, (_ANY16, _ANY16), _ADD16),
    ("or16", 9, _ANY16, (_ANY16, _ANY16), _ADD16),
    ("xor16", 10, _ANY16, (_ANY16, _ANY16), _ADD16),
    ("sll16", 11, _ANY16, (_ANY16, _ANY16), _ADD16),
    ("slr16", 12, _ANY16, (_ANY16, _ANY16), _ADD16),
    ("sar16", 13, _ANY16, (_ANY16, _ANY16), _ADD16),
    ("clz", 14, _ANY16, (_ANY16,), _SLOW),
    ("ctz", 15, _ANY16, (_ANY16,), _SLOW),
    ("popcnt", 16, _ANY16, (_ANY16,), _SLOW),
    ("faddh", 17, "f16", ("f16", "f16"), _ADD16),
    ("fadds", 18, "f32", ("f32", "f32"), _ADD32),
    ("faddhs", 19, "f32", ("f32", "f16"), _ADD32),
    ("fsubh", 20, "f16", ("f16", "f16"), _ADD16),
    ("fsubs", 21, "f32", ("f32", "f32"), _ADD32),
    ("fmulh", 22, "f16", ("f16", "f16"), _FMA16),
    ("fmuls", 23, "f32", ("f32", "f32"), _MUL32),
    ("fmach", 24, "f16", ("f16", "f16", "f16"), _FMA16),
    ("fmacs", 25, "f32", ("f32", "f32", "f32"), _MUL32),
    ("fmachs", 26, "f32", ("f32", "f16", "f16"), _FMACHS),
    ("fmaxh", 27, "f16", ("f16", "f16"), _speed(1, 8)),
    ("fmaxs", 28, "f32", ("f32", "f32"), _speed(1, 4)),
    ("fnegh", 29, "f16", ("f16",), _MOVE16),
    ("fnegs", 30, "f32", ("f32",), _MOVE32),
    ("fabsh", 31, "f16", ("f16",), _MOVE16),
    ("fabss", 32, "f32", ("f32",), _MOVE32),
    ("fh2s", 33, "f32", ("f16",), _CONVERT),
    ("fs2h", 34, "f16", ("f32",), _CONVERT),
    ("fh2xp16", 35, "i16", ("f16",), _CONVERT),
    ("fs2xp16", 36, "i16", ("f32",), _CONVERT),
    ("xp162fh", 37, "f16", ("i16",), _CONVERT),
    ("xp162fs", 38, "f32", ("i16",), _CONVERT),
    ("fscaleh", 41, "f16", ("f16", "i16"), _SLOW),
    ("fscales", 42, "f32", ("f32", "i16"), _SLOW),
)

VECTOR_OPS: Final[Mapping[str, VectorOp]] = MappingProxyType(
    {name: VectorOp(name, code, to, of, *speed) for name, code, to, of, speed in _TABLE}
)
"""Every operation by name."""

VECTOR_OPS_BY_CODE: Final[Mapping[int, VectorOp]] = MappingProxyType(
    {op.code: op for op in VECTOR_OPS.values()}
)
"""Every operation by number."""


def element_words(element_type: str) -> int:
    """Memory words that one element of a type takes."""
    return 2 if element_type.endswith("32") else 1
