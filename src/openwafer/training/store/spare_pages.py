"""Huge pages that stay in the process while the buffers around them come and go.

A page that is new to the process is filled with zeros by the kernel, inside the read that is its
first use. A ring that wants other sizes in each half of a step would pay that for most of its
bytes; pages that move from buffer to buffer cost next to nothing.
"""

from openwafer.training.store.host_buffer import HostBuffer
from openwafer.training.store.paging import move_pages


class SparePages:
    """Pages of buffers whose size nobody wants; `num_bytes` of them."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._givers: list[tuple[HostBuffer, int]] = []

    def add(self, buffer: HostBuffer) -> None:
        """Keep the huge pages of a buffer that nobody uses; the rest of it goes."""
        buffer.clear(buffer.num_huge_bytes)
        self._givers.append((buffer, buffer.num_huge_bytes))
        self.num_bytes += buffer.num_huge_bytes

    def move_to(self, buffer: HostBuffer) -> int:
        """Put pages below a new buffer; return their bytes, which are not spare any more."""
        num_moved = 0
        while self._givers and num_moved < buffer.num_huge_bytes:
            giver, num_held = self._givers.pop()
            size = min(num_held, buffer.num_huge_bytes - num_moved)
            source = giver.tensor.data_ptr() + num_held - size
            if not move_pages(source, buffer.tensor.data_ptr() + num_moved, size):
                self._givers.append((giver, num_held))
                break
            num_moved += size
            if num_held > size:
                self._givers.append((giver, num_held - size))
        self.num_bytes -= num_moved
        return num_moved

    def give_back(self) -> int:
        """Give some pages back to the system; return their bytes, 0 when none were spare."""
        _, num_bytes = self._givers.pop() if self._givers else (None, 0)
        self.num_bytes -= num_bytes
        return num_bytes
