"""Number formats by name and size, as plain data for every wing; torch and numpy stay outside."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Kind(StrEnum):
    """What the bits mean."""

    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOL = "bool"


@dataclass(frozen=True)
class DType:
    """A number format; a float has a sign, `exponent_bits` and stored `mantissa_bits`."""

    name: str
    kind: Kind
    num_bits: int
    exponent_bits: int = 0
    mantissa_bits: int = 0
    custom_bias: int | None = None

    def __post_init__(self) -> None:
        stored = 1 + self.exponent_bits + self.mantissa_bits
        if self.kind is Kind.FLOAT and stored != self.num_bits:
            raise ValueError(f"{self.name} has {self.num_bits} bits, its fields take {stored}")

    @property
    def num_bytes(self) -> int:
        """Bytes of one element in memory."""
        return self.num_bits // 8

    @property
    def exponent_bias(self) -> int:
        """What is taken from a float's exponent field: half its range, unless the format says."""
        half = (1 << (self.exponent_bits - 1)) - 1 if self.exponent_bits else 0
        return half if self.custom_bias is None else self.custom_bias

    def __str__(self) -> str:
        return self.name


F16 = DType("f16", Kind.FLOAT, 16, exponent_bits=5, mantissa_bits=10)
BF16 = DType("bf16", Kind.FLOAT, 16, exponent_bits=8, mantissa_bits=7)
# The wafer's own 16-bit format; its bias makes room for small numbers, not for large ones.
CB16 = DType("cb16", Kind.FLOAT, 16, exponent_bits=6, mantissa_bits=9, custom_bias=42)
F32 = DType("f32", Kind.FLOAT, 32, exponent_bits=8, mantissa_bits=23)
F64 = DType("f64", Kind.FLOAT, 64, exponent_bits=11, mantissa_bits=52)
I8, I16, I32, I64 = (DType(f"i{bits}", Kind.SIGNED, bits) for bits in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"u{bits}", Kind.UNSIGNED, bits) for bits in (8, 16, 32, 64))
BOOL = DType("bool", Kind.BOOL, 8)

DTYPES: Mapping[str, DType] = MappingProxyType(
    {d.name: d for d in (F16, BF16, CB16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, BOOL)}
)
"""Every format by its name."""
