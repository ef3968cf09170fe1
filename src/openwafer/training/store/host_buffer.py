"""Page-aligned host memory of exact size, outside malloc's arenas."""

import mmap

import torch

from openwafer.training.store.layout import ArrayPlace


class HostBuffer:
    """`num_bytes` of private anonymous memory, zero at first; it goes when its last view dies.

    Malloc keeps freed blocks in its arenas and rounds large ones up, so that nobody could predict
    the resident set; an anonymous mapping costs its size and nothing else.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        # A mapping cannot be empty: without bytes it is one page that nobody touches.
        self._mapping = mmap.mmap(
            -1, max(num_bytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.tensor = torch.frombuffer(self._mapping, dtype=torch.uint8)[:num_bytes]

    def window(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`, for I/O and checksums."""
        return memoryview(self._mapping)[start:end]

    def clear(self) -> None:
        """Make all bytes zero, by giving the pages back."""
        self._mapping.madvise(mmap.MADV_DONTNEED)

    def array(self, place: ArrayPlace) -> torch.Tensor:
        """View of one array, of its dtype and shape."""
        flat = self.tensor[place.offset_bytes : place.end_bytes]
        return flat.view(place.spec.dtype).view(place.spec.shape)
