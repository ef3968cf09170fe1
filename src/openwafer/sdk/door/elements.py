"""Elements of host variables: from CSL's types to numpy's, and values that fit them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openwafer.diagnostics import error
from openwafer.sdk.host import DataType, tensors

_ELEMENT: Final = re.compile(r"(?:\[\*\]|\[\d+\]|\*)*(?:const )?(\w+)")
DTYPES: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "f16": np.dtype(np.float16),
        "i16": np.dtype(np.int16),
        "u16": np.dtype(np.uint16),
        "f32": np.dtype(np.float32),
        "i32": np.dtype(np.int32),
        "u32": np.dtype(np.uint32),
    }
)
"""numpy's type of each of CSL's that the host copies."""


@dataclass(frozen=True)
class Element:
    """The elements of a variable that the host knows.

    Attributes:
        name: of the variable.
        dtype: numpy's type of its elements.
    """

    name: str
    dtype: np.dtype[Any]

    @property
    def data_type(self) -> DataType:
        """Their size, as a copy says it."""
        return DataType.BITS_16 if self.dtype.itemsize == 2 else DataType.BITS_32

    def to_words(self, values: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.uint32]:
        """Values, broadcast to a shape, as the 32-bit words of a copy.

        Raises:
            OpenwaferError: they do not broadcast, are of another kind, or out of range.
        """
        array = np.asarray(values)
        self._check_kind(array)
        try:
            spread = np.broadcast_to(array, shape)
        except ValueError:
            raise error(
                "host-tensor-shape",
                f"{self.name}: the PEs take values of shape {shape}: rows, columns, elements; "
                f"these have {array.shape}",
                help="give an array of that shape, or one that numpy broadcasts to it",
            ) from None
        with np.errstate(over="ignore"):
            elements = np.ascontiguousarray(spread, self.dtype)
        self._check_range(array, elements)
        return tensors.from_memory(elements.view(np.uint16), self.data_type)

    def from_words(self, words: NDArray[np.uint32]) -> NDArray[Any]:
        """The elements in the words of a copy; nobody can write to them."""
        elements = tensors.to_memory(words, self.data_type).view(self.dtype)
        elements.flags.writeable = False
        return elements

    def _check_kind(self, array: NDArray[Any]) -> None:
        accepted = "iu" if self.dtype.kind in "iu" else "iuf"
        if array.dtype.kind not in accepted:
            raise error(
                "host-element-type",
                f"{self.name} has elements of {self.dtype}, these values are {array.dtype}",
                help=f"convert them: values.astype(np.{self.dtype})",
            )

    def _check_range(self, array: NDArray[Any], elements: NDArray[Any]) -> None:
        if self.dtype.kind == "f":
            wrong = np.isinf(elements) & ~np.isinf(array)
            if array.dtype.kind in "iu":
                self._check_exact(array, elements)
        else:
            wrong = elements != array
        if wrong.any():
            worst = np.broadcast_to(array, wrong.shape)[wrong].flat[0]
            raise error(
                "host-element-range",
                f"{self.name} has elements of {self.dtype}, which do not reach as far as {worst}",
                help="scale the values, or give the variable a wider type",
            )

    def _check_exact(self, array: NDArray[Any], elements: NDArray[Any]) -> None:
        """Integers that a float has no bits for are refused; floats are rounded, as ever."""
        back = elements.astype(np.float64)
        wrong = np.isfinite(back) & (back != array)
        if wrong.any():
            lost = np.broadcast_to(array, wrong.shape)[wrong].flat[0]
            raise error(
                "host-element-range",
                f"{self.name} has elements of {self.dtype}, which cannot hold {lost} exactly",
                help="give floats where rounding is meant: values.astype(np.float64)",
            )


def element_of(name: str, csl_type: str) -> Element:
    """The elements of a variable of a CSL type such as ``[*]f32``.

    Raises:
        OpenwaferError: the host copies no elements of that type.
    """
    found = _ELEMENT.fullmatch(csl_type)
    dtype = DTYPES.get(found[1]) if found else None
    if dtype is None:
        raise error(
            "host-element-type",
            f"{name} is of type {csl_type}; the host copies {', '.join(DTYPES)} and arrays of them",
            help="export a pointer to an array of one of these, such as [*]u16",
        )
    return Element(name, dtype)
