"""Number types of kernels, and what their rounding may cost."""

from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error


class Precision(StrEnum):
    """Types of the elements and of the sums: f32, f16, or f16 elements with f32 sums."""

    F32 = "f32"
    F16 = "f16"
    F16_F32 = "f16-f32"

    @property
    def given(self) -> np.dtype[Any]:
        """Type of the elements that a kernel takes."""
        return np.dtype(np.float32 if self is Precision.F32 else np.float16)

    @property
    def sums(self) -> np.dtype[Any]:
        """Type of the sums that it gives back."""
        return np.dtype(np.float16 if self is Precision.F16 else np.float32)

    @property
    def in_wavelet(self) -> int:
        """Sums that travel in one wavelet."""
        return 4 // self.sums.itemsize

    @property
    def is_widened(self) -> bool:
        """Whether elements become longer before they are added up."""
        return self is Precision.F16_F32

    @property
    def params(self) -> dict[str, bool]:
        """Of a program."""
        return {"is_f16": self is Precision.F16, "is_widened": self.is_widened}


def precision_of(name: str | None, dtype: np.dtype[Any], *, is_complex: bool = False) -> Precision:
    """The precision that was asked for, or the one of an array: f16 is summed in f32.

    Args:
        name: of the precision; None takes the array's.
        dtype: of the array.
        is_complex: whether a kernel takes complex64, each of whose parts is an element.

    Raises:
        OpenwaferError: there is no such precision, or it takes other elements.
    """
    by_type = _OF_COMPLEX if is_complex else _OF_REAL
    found = by_type.get(dtype) if name is None else named_precision(name)
    taken = list(by_type) if found is None or is_complex else [found.given]
    if found is None or dtype not in taken:
        by_name = "" if found is None or is_complex else f", as precision {found}"
        raise error(
            "kernel-dtype",
            f"values are {dtype}; a kernel takes {' or '.join(map(str, taken))}{by_name}",
            help=f"convert them, as in values.astype(np.{taken[0]})",
        )
    return found


_OF_REAL: Final = {
    np.dtype(np.float32): Precision.F32,
    np.dtype(np.float16): Precision.F16_F32,
}
_OF_COMPLEX: Final = {np.dtype(np.complex64): Precision.F32}


def named_precision(name: str) -> Precision:
    """A precision by its name.

    Raises:
        OpenwaferError: there is none.
    """
    if name not in list(Precision):
        known = ", ".join(Precision)
        raise error("kernel-precision", f"precision is {name!r}", help=f"give one of {known}")
    return Precision(name)


def moved_precision(name: str) -> Precision:
    """The precision of values that are moved and not added up.

    Raises:
        OpenwaferError: there is none of this name, or it has sums of another type.
    """
    found = named_precision(name)
    if found.is_widened:
        what = f"precision is {name!r}, which has sums; values that are moved have none"
        raise error("kernel-precision", what, help="give f32 or f16")
    return found


def moved_as(values: NDArray[Any]) -> Precision:
    """The precision in which an array is moved; one of another type is refused when it is given."""
    return Precision.F16 if values.dtype == np.float16 else Precision.F32


def check_range(name: str, values: NDArray[np.float32], precision: Precision) -> None:
    """Refuse finite values that become infinite where they are rounded to the elements' type.

    Raises:
        OpenwaferError: ``kernel-range``, there are some.
    """
    with np.errstate(over="ignore"):
        beyond = np.isinf(values.astype(precision.given)) & np.isfinite(values)
    if beyond.any():
        worst = float(np.abs(values[beyond]).max())
        raise error(
            "kernel-range",
            f"{int(beyond.sum())} of the {values.size} values of {name} are beyond "
            f"{precision.given}, which ends at {float(np.finfo(precision.given).max):g}: one is "
            f"{worst:g}",
            help="compute in f32, or keep them small: a lower learning rate, or weight decay",
        )


UNIT: Final = 2.0**-24
"""The most that a rounding of float32 changes, as a share."""
_ROUNDOFF: Final = {np.dtype(np.float32): UNIT, np.dtype(np.float16): 2.0**-11}


def gamma(num_roundings: int, dtype: np.dtype[Any]) -> float:
    """The relative error of a product of so many factors 1 + d, each |d| at most half an ulp.

    Higham, Accuracy and Stability of Numerical Algorithms, section 3.1: n u / (1 - n u).
    """
    share = num_roundings * _ROUNDOFF[dtype]
    return share / (1 - share) if share < 1 else float("inf")


_MOST_INVERTED: Final = 2.0**126


def have_inverses(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether float32 values and one over them are normal numbers, so that both are rounded by u.

    They are from 2**-126 to 2**126.
    """
    magnitudes = np.abs(values)
    is_least, is_most = magnitudes >= 1 / _MOST_INVERTED, magnitudes <= _MOST_INVERTED
    found: NDArray[np.bool_] = is_least & is_most
    return found


def bound_of_sums(
    magnitudes: NDArray[np.float64], num_roundings: int, dtype: np.dtype[Any]
) -> NDArray[np.float64]:
    """Bound of the error of sums from the sums of their terms' magnitudes.

    It is infinite where a sum on the way may leave the range of `dtype`.
    """
    relative = gamma(num_roundings, dtype)
    may_overflow = magnitudes * (1 + relative) > float(np.finfo(dtype).max)
    return np.where(may_overflow, np.inf, relative * magnitudes)


def bound_of_products(
    a: NDArray[Any], b: NDArray[Any], num_roundings: int, num_products: int, dtype: np.dtype[Any]
) -> NDArray[np.float64]:
    """Bound of the error of sums of products, each added to a sum with one rounding.

    A product below the normal numbers may lose half of the least one, sums of such numbers nothing.

    Args:
        a: matrix, finite.
        b: matrix or vector that it is multiplied with, finite.
        num_roundings: the most that a product goes through.
        num_products: of each sum.
        dtype: of the sums.
    """
    magnitudes = abs(a.astype(np.float64)) @ abs(b.astype(np.float64))
    least = float(np.finfo(dtype).smallest_subnormal) / 2
    lost = num_products * least * (1 + gamma(num_roundings, dtype))
    return bound_of_sums(magnitudes, num_roundings, dtype) + lost
