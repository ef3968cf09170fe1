"""Which pages of a tensor are in memory, as the kernel says."""

import mmap

import torch

from openwafer.training.store.pages import resident_bytes

PAGE = mmap.PAGESIZE


def test_pages_that_were_written_are_resident_and_the_others_are_not() -> None:
    pages = mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    tensor = torch.frombuffer(pages, dtype=torch.uint8)
    tensor[PAGE : 4 * PAGE] = 1
    assert resident_bytes(tensor.untyped_storage()) == 3 * PAGE


def test_a_storage_within_a_page_has_no_page_of_its_own() -> None:
    pages = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    part = torch.frombuffer(pages, dtype=torch.uint8, offset=8, count=64).fill_(1)
    assert resident_bytes(part.untyped_storage()) == 0
