"""Buffers of pages, on kernels that do not know all that they are asked."""

import errno
import mmap

import pytest

from openwafer.training.store.pages import HUGE_BYTES, HostBuffer


class SmallPages(mmap.mmap):
    """Of a kernel that was built without huge pages."""

    def madvise(self, option: int, *place: int) -> None:
        if option == mmap.MADV_HUGEPAGE:
            raise OSError(errno.EINVAL, "Invalid argument")
        super().madvise(option, *place)


def test_a_kernel_without_huge_pages_gives_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", SmallPages)
    tensor = HostBuffer(HUGE_BYTES + 1).tensor
    assert tensor.fill_(1).sum().item() == HUGE_BYTES + 1
