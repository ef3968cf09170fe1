"""Host tensors of a region of PEs: from and to the order in which the host holds them."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error


class Order(IntEnum):
    """How a tensor of shape (h, w, l) lies in the host's one-dimensional array."""

    ROW_MAJOR = 0
    """l is the fastest, then w, then h."""
    COL_MAJOR = 1
    """h is the fastest, then w, then l: Fortran's order of the tensor."""


_NUMPY_ORDERS: Final[Mapping[Order, Literal["C", "F"]]] = MappingProxyType(
    {Order.ROW_MAJOR: "C", Order.COL_MAJOR: "F"}
)


class DataType(IntEnum):
    """Size of an element on the device in copy mode; on the host it takes 32 bits always."""

    BITS_16 = 0
    BITS_32 = 1

    @property
    def num_words(self) -> int:
        """Memory words of an element."""
        return 1 if self is DataType.BITS_16 else 2


def words_of(array: object, num_elements: int, name: str) -> NDArray[np.uint32]:
    """Return the first 32-bit words of a host array, a view where that is possible.

    Scripts pass what is left of a longer array, so there may be more elements than `num_elements`.
    Raises OpenwaferError when there are fewer, or when an element does not have four bytes.
    """
    if not isinstance(array, np.ndarray):
        kind = type(array).__name__
        message = f"{name} is of type {kind}, not a numpy array"
        raise error("host-no-array", message, help="give an array with elements of 4 bytes")
    if array.dtype.itemsize != 4:
        raise error(
            "host-element-size",
            f"{name} has elements of {array.dtype.itemsize} bytes ({array.dtype}), not of 4",
            help=_remedy_for_size(array.dtype, name),
        )
    if not array.dtype.isnative:
        raise error(
            "host-element-order",
            f"{name} has elements of {array.dtype}, whose bytes are in the other order",
            help=f"turn them round: {name}.astype({name}.dtype.newbyteorder('='))",
        )
    if array.size < num_elements:
        raise error(
            "host-tensor-size",
            f"{name} has {array.size} elements; the region takes {num_elements}",
            help="the size is width * height * elements of one PE",
        )
    return np.ascontiguousarray(array).reshape(-1)[:num_elements].view(np.uint32)


def _remedy_for_size(dtype: np.dtype[Any], name: str) -> str:
    if name == "dest":
        return "make it with elements of 4 bytes, such as np.float32 or np.uint32"
    if dtype.itemsize < 4:
        return "widen 16-bit data first: input_array_to_u32(array, None, 1)"
    narrow = {"f": "float32", "i": "int32"}.get(dtype.kind, "uint32")
    return f"convert it: array.astype(np.{narrow})"


def _remedy_for_words(array: object) -> str:
    if not isinstance(array, np.ndarray):
        return "give an array: np.array(..., np.uint32)"
    if array.dtype.itemsize == 4:
        return "show its bits as words: src.view(np.uint32)"
    if array.dtype.itemsize == 2:
        return "put each element into the low half of a word: src.view(np.uint16).astype(np.uint32)"
    return "make elements of 32 bits first: src.astype(np.float32).view(np.uint32)"


def check_writeable(array: NDArray[Any], name: str) -> None:
    """Raise OpenwaferError for an array that nothing can be written to."""
    if not array.flags.writeable:
        raise error(
            "host-read-only", f"{name} is read-only", help="give an array of its own: np.empty(...)"
        )


def check_tensor(words: object, shape: tuple[int, int, int]) -> None:
    """Raise OpenwaferError unless an array is one of 32-bit words, of a region's shape."""
    if not isinstance(words, np.ndarray) or words.dtype != np.uint32:
        kind = words.dtype if isinstance(words, np.ndarray) else f"type {type(words).__name__}"
        raise error(
            "host-element-type",
            f"src is of {kind}; a copy takes 32-bit words, uint32",
            help=_remedy_for_words(words),
        )
    if words.shape != shape:
        raise error(
            "host-tensor-shape",
            f"src has shape {words.shape}; the region takes {shape}: rows, columns, elements",
        )


def to_region(words: NDArray[np.uint32], shape: tuple[int, int, int], order: Order) -> Any:
    """Return an array of shape (h, w, l) for a flat one."""
    return words.reshape(shape, order=_NUMPY_ORDERS[order])


def from_region(region: NDArray[np.uint32], order: Order) -> NDArray[np.uint32]:
    """Return the flat array of one of shape (h, w, l)."""
    return region.reshape(-1, order=_NUMPY_ORDERS[order])


def to_memory(elements: NDArray[np.uint32], data_type: DataType) -> NDArray[np.uint16]:
    """Return the memory words of elements, the last axis; the low half comes first."""
    if data_type is DataType.BITS_16:
        return (elements & 0xFFFF).astype(np.uint16)
    return np.ascontiguousarray(elements).view(np.uint16)


def from_memory(words: NDArray[np.uint16], data_type: DataType) -> NDArray[np.uint32]:
    """Return elements of memory words, the last axis; 16-bit elements are zero above."""
    if data_type is DataType.BITS_16:
        return words.astype(np.uint32)
    return np.ascontiguousarray(words).view(np.uint32)


def fill(dest: NDArray[Any], words: NDArray[np.uint32]) -> None:
    """Write the first elements, of four bytes each, of a host array of any shape and layout."""
    dest.flat[: words.size] = words.view(dest.dtype)
