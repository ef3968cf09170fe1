"""The vendor's tensors by port maps, of the first releases of its runtime."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from openwafer.diagnostics import error
from openwafer.sdk.compat.port_maps import PortMap, read_port_map
from openwafer.sdk.compat.sdk_utils import input_array_to_u32, memcpy_view

__all__ = ["convert_input_tensor", "format_output_tensor", "prepare_output_tensor"]

Transfer = tuple[int, int, int, int, int, NDArray[np.uint32]]
"""Column, row, width, height and elements of one PE, then the words in row-major order."""


def convert_input_tensor(portmap: str, tensor: NDArray[Any]) -> Transfer:
    """Return the arguments that copy a tensor to the PEs of its port map.

    Raises OpenwaferError for another shape than the map's, or elements of 8 or 64 bits.
    """
    found = read_port_map(portmap)
    if tensor.size != found.places.size:
        raise error(
            "port-map-size",
            f"the port map has {found.places.size} elements, {found.shape}, "
            f"the tensor {tensor.size}, {tensor.shape}",
        )
    words = _empty(found)
    words[found.places.reshape(-1)] = input_array_to_u32(tensor, None, 1)
    return _transfer(found, words)


def prepare_output_tensor(portmap: str, dtype: DTypeLike) -> Transfer:
    """Return the arguments that copy a tensor of that type from the PEs of its port map."""
    np.dtype(dtype)
    found = read_port_map(portmap)
    return _transfer(found, _empty(found))


def format_output_tensor(portmap: str, dtype: DTypeLike, data: NDArray[np.uint32]) -> NDArray[Any]:
    """Return the tensor, in its shape, of words that were copied from the device."""
    found = read_port_map(portmap)
    words = data.reshape(-1)[found.places]
    return memcpy_view(words, dtype).copy()


def _empty(found: PortMap) -> NDArray[np.uint32]:
    return np.zeros(found.size[0] * found.size[1] * found.num_elements, np.uint32)


def _transfer(found: PortMap, words: NDArray[np.uint32]) -> Transfer:
    return (*found.origin, *found.size, found.num_elements, words)
