"""The vendor's conversions of host tensors."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from openwafer.diagnostics import error

__all__ = ["calculate_cycles", "input_array_to_u32", "memcpy_view"]

_COUNTER_FLOATS = 3


def memcpy_view(arr: NDArray[Any], datatype: DTypeLike) -> NDArray[Any]:
    """Return a view of the low 32, 16 or 8 bits of each element of an array of 32-bit elements.

    Raises OpenwaferError for elements of another size.
    """
    dtype = np.dtype(datatype)
    if arr.dtype.itemsize != 4 or dtype.itemsize not in (1, 2, 4):
        raise error(
            "view-size",
            f"memcpy_view shows 1, 2 or 4 bytes of elements of 4; got {dtype} of {arr.dtype}",
        )
    if dtype.itemsize == 4:
        return arr.view(dtype)
    return arr.view(dtype)[..., :: 4 // dtype.itemsize]


def input_array_to_u32(
    np_arr: NDArray[Any], sentinel: int | None, fast_dim_sz: int
) -> NDArray[np.uint32]:
    """Return the elements as 32-bit words, in the order of the array's memory.

    Elements of 16 bits stand in the low half. With a sentinel the high half is the element's index
    in the fastest dim, of size `fast_dim_sz`; otherwise it is zero.

    Raises OpenwaferError for elements of another size.
    """
    flat = np.ascontiguousarray(np_arr).reshape(-1)
    if np_arr.dtype.itemsize == 4:
        return flat.view(np.uint32)
    if np_arr.dtype.itemsize != 2:
        raise error("view-size", f"elements have 2 or 4 bytes; {np_arr.dtype} has another size")
    words = flat.view(np.uint16).astype(np.uint32)
    if sentinel is not None:
        words |= (np.arange(words.size, dtype=np.uint32) % np.uint32(fast_dim_sz)) << np.uint32(16)
    return words


def calculate_cycles(timestamp_buf: NDArray[np.float32]) -> np.int64:
    """Return the cycles between two time stamps.

    Args:
        timestamp_buf: three f32 whose bits are six u16: start, then end, each the low word first.

    Raises:
        OpenwaferError: it does not hold three elements of 32 bits.
    """
    flat = np.ascontiguousarray(timestamp_buf).reshape(-1)
    if flat.size != _COUNTER_FLOATS or flat.dtype.itemsize != 4:
        raise error(
            "timestamp-size", f"a pair of time stamps is 3 elements of 4 bytes, got {flat.size}"
        )
    words = flat.view(np.uint16).astype(np.int64)
    start, end = (int(w[0] | (w[1] << 16) | (w[2] << 32)) for w in (words[:3], words[3:]))
    return np.int64(end - start)
