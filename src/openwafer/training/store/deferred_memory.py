"""Build a model larger than memory: its tensors lie in a scratch file, not in RAM.

While a `DeferredMemory` is active, such as :func:`deferred_weights` makes, large new tensors on the
CPU get memory that is a shared mapping of a file. All else is torch's own: the model's constructor
and initialisation run as they are, draw the same random numbers in the same order, and give the
same bits. Pages that were not used lately are written to the file and leave the resident set.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

import psutil
import torch
from torch import Tensor

from openwafer.config import PathLike, Size, bytes_of, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import PAGE_BYTES, round_up
from openwafer.training.store.pages import page_out
from openwafer.training.store.store_file import free_bytes_of
from openwafer.training.torch_private import TorchDispatchMode, Unguarded, tensors_in

IN_MEMORY: Final = ("tmpfs", "ramfs")
MIN_BYTES: Final = 64 << 10

aten = torch.ops.aten
Fill: TypeAlias = Callable[..., object]


def _draw(draw: Callable[..., object], low: float, high: float) -> Fill:
    """Drawn by the same call as torch's own kernel, which allocates first, too."""
    return lambda new, *_, generator=None, **__: draw(new, low, high, generator=generator)


# Operators that allocate, and what they do with the new tensor, which is zero at first.
FILLS: Mapping[Any, Fill] = {
    **dict.fromkeys((aten.empty, aten.empty_like, aten.new_empty), lambda *_, **__: None),
    aten.empty_strided: lambda *_, **__: None,
    **dict.fromkeys((aten.zeros, aten.zeros_like, aten.new_zeros), lambda *_, **__: None),
    **dict.fromkeys((aten.ones, aten.ones_like, aten.new_ones), lambda new, *_, **__: new.fill_(1)),
    **dict.fromkeys(
        (aten.full, aten.full_like, aten.new_full), lambda new, *args, **__: new.fill_(args[-1])
    ),
    **dict.fromkeys((aten.rand, aten.rand_like), _draw(Tensor.uniform_, 0, 1)),
    **dict.fromkeys((aten.randn, aten.randn_like), _draw(Tensor.normal_, 0, 1)),
    **dict.fromkeys(
        (aten.clone, aten._to_copy),  # noqa: SLF001
        lambda new, source, *_, **__: new.copy_(source),
    ),
    aten.cat: lambda new, sources, dim=0: torch.cat(tuple(sources), dim, out=new),
    aten.stack: lambda new, sources, dim=0: torch.stack(tuple(sources), dim, out=new),
}


class ScratchFile:
    """A file that has no name, so that it goes with the process, mapped as one growing arena."""

    def __init__(self, folder: Path) -> None:
        self._descriptor, name = tempfile.mkstemp(dir=folder)
        Path(name).unlink()
        # The mapping cannot grow without moving; it is as large as it could ever be filled.
        num_bytes = free_bytes_of(folder) // PAGE_BYTES * PAGE_BYTES
        os.ftruncate(self._descriptor, num_bytes)
        self._mapping = mmap.mmap(self._descriptor, num_bytes)
        self._folder = folder
        self._num_bytes = num_bytes
        self._end = 0

    def allocate(self, num_bytes: int) -> tuple[int, Tensor]:
        """Zero bytes as a uint8 tensor, and their offset. Raises `scratch-disk-full`."""
        start, size = self._end, round_up(num_bytes, PAGE_BYTES)
        # The system would fill the disk before it says no, and others write to it, too.
        free = free_bytes_of(self._folder)
        if size > free:
            raise self._full(size, f"the disk has {free} bytes free")
        try:
            # A mapped page without a block on the disk would end the process when it is written.
            os.posix_fallocate(self._descriptor, start, size)
        except OSError as cause:
            raise self._full(size, str(cause)) from cause
        self._end += size
        return start, torch.frombuffer(
            self._mapping, dtype=torch.uint8, count=num_bytes, offset=start
        )

    def _full(self, num_bytes: int, why: str) -> OpenwaferError:
        return error(
            "scratch-disk-full",
            f"the scratch file in {self._folder} cannot grow from {self._end} to "
            f"{self._end + num_bytes} bytes: {why}",
            help="free some space, or use a folder on another disk",
        )

    def seal(self) -> None:
        """No more is to be allocated. The tensors keep the mapping, and the mapping the file."""
        os.close(self._descriptor)

    def evict(self, start: int, num_bytes: int) -> None:
        """Write pages to the file and take them out of the resident set."""
        size = round_up(num_bytes, PAGE_BYTES)
        self._mapping.flush(start, size)
        self._mapping.madvise(mmap.MADV_DONTNEED, start, size)


class DeferredMemory(Unguarded, TorchDispatchMode):
    """Context in which new CPU tensors of `min_bytes` or more live in a file in `folder`.

    The first of them, `spare_bytes` in all, live in ordinary memory. About `resident_bytes` of the
    others, or the tensors of one operator where those are more, stay in
    memory. The tensors remain valid after the block; the file's space returns when the last of
    them is gone. `folder` must be on a disk, not in memory as tmpfs is. Enter it once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        resident_bytes: int = 256 << 20,
        min_bytes: int = 1 << 20,
        spare_bytes: int = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._folder = folder
        self._spare_bytes = spare_bytes
        self._scratch: ScratchFile | None = None
        self._resident_bytes = resident_bytes
        self._min_bytes = min_bytes
        self._offsets: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        # Addresses of the tensors that may have pages in memory, the longest unused first.
        self._recent: dict[int, None] = {}
        # Tensors in memory of others, such as the pages of a file that safetensors maps.
        self._mapped: dict[int, Tensor] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, value, trace)
        self.trim()
        if self._scratch is not None:
            self._scratch.seal()

    def trim(self) -> None:
        """Take all scratch pages out of the resident set; the next use brings them back."""
        self._evict_down_to(0, kept=frozenset())
        for tensor in self._mapped.values():
            page_out(tensor)
        self._mapped.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        result = self._deferred(func, args, options)
        if result is None:
            result = func(*args, **options)
        self._note_use([result, *args])
        self._note_mapped(args)
        return result

    def _deferred(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Tensor | None:
        fill = FILLS.get(func.overloadpacket)
        if fill is None or "out" in options or not _is_plain_cpu(args, options):
            return None
        kind = _on_meta(func, args, options)
        num_bytes = kind.numel() * kind.element_size()
        if num_bytes < self._min_bytes or not kind.is_contiguous():
            return None
        self._spare_bytes -= num_bytes
        if self._spare_bytes >= 0:
            return None
        new = self._allocate(num_bytes).view(kind.dtype).view(kind.shape)
        fill(new, *args, **options)
        return new

    def _allocate(self, num_bytes: int) -> Tensor:
        if self._scratch is None:
            self._scratch = ScratchFile(self._folder)
        start, flat = self._scratch.allocate(num_bytes)
        address = flat.data_ptr()
        self._offsets[address] = start
        self._sizes[address] = num_bytes
        return flat

    def _note_use(self, values: Iterable[Any]) -> None:
        used = {_address(tensor) for tensor in _on_cpu(values)} & self._sizes.keys()
        if not used:
            return
        for address in used:
            self._recent.pop(address, None)
            self._recent[address] = None
        self._evict_down_to(self._resident_bytes, kept=used)

    def _note_mapped(self, values: Iterable[Any]) -> None:
        for tensor in _on_cpu(values):
            if tensor.nbytes >= self._min_bytes and self._is_foreign(tensor):
                self._mapped.pop(tensor.data_ptr(), None)
                self._mapped[tensor.data_ptr()] = tensor
        total = sum(tensor.nbytes for tensor in self._mapped.values())
        while total > self._resident_bytes and len(self._mapped) > 1:
            tensor = self._mapped.pop(next(iter(self._mapped)))
            page_out(tensor)
            total -= tensor.nbytes

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether the memory is neither torch's own nor the scratch file's."""
        return not tensor.untyped_storage().resizable() and _address(tensor) not in self._sizes

    def _evict_down_to(self, num_bytes: int, kept: Iterable[int]) -> None:
        total = sum(self._sizes[address] for address in self._recent)
        for address in [address for address in self._recent if address not in kept]:
            if total <= num_bytes:
                return
            total -= self._sizes[address]
            del self._recent[address]
            if self._scratch is not None:
                self._scratch.evict(self._offsets[address], self._sizes[address])


def _is_plain_cpu(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    device = options.get("device")
    source = args[0] if args else None
    if isinstance(source, list | tuple) and source:
        source = source[0]
    if device is None and isinstance(source, Tensor):
        device = source.device
    is_cpu = device is None or torch.device(device).type == "cpu"
    is_strided = options.get("layout") in (None, torch.strided)
    return is_cpu and is_strided and not options.get("pin_memory")


def _on_meta(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Tensor:
    if func.overloadpacket is aten.clone:
        like: Tensor = torch.empty_like(args[0], device="meta", **options)
        return like
    if func.overloadpacket in (aten.cat, aten.stack):
        joined: Tensor = func([source.to("meta") for source in args[0]], *args[1:])
        return joined
    kind: Tensor = func(*args, **{**options, "device": "meta"})
    return kind


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _on_cpu(values: Iterable[Any]) -> Iterator[Tensor]:
    for tensor in tensors_in(values):
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            yield tensor


def deferred_weights(
    folder: PathLike | None = None, *, resident_bytes: Size = 64 << 20
) -> DeferredMemory:
    """Context in which the tensors of a new model lie in a scratch file instead of in memory.

    The constructor runs as it is, so that weights, buffers and random state have the bits they
    would have without. The tensors are ordinary ones: they may be read, written and saved, then
    and later, and those not used lately leave the memory. ``stream_weights`` moves them record by
    record into its store; the file has no name, and is gone with the last of them.

    Args:
        folder: where the scratch file is, on a disk; ``None`` is the system's for temporary files.
        resident_bytes: of the deferred tensors, so many stay in memory, or those of one operator
            where these are more.

    Raises:
        OpenwaferError: ``scratch-in-memory`` when the folder's files lie in memory,
            ``scratch-disk-full``.
    """
    scratch = path_of(folder or tempfile.gettempdir(), "folder").absolute()
    kind = _file_system_of(scratch)
    if kind in IN_MEMORY:
        raise error(
            "scratch-in-memory",
            f"files in {scratch} lie in memory: it is on a {kind}",
            help="give deferred_weights a folder on a disk",
        )
    return DeferredMemory(
        scratch, resident_bytes=bytes_of(resident_bytes, "resident_bytes"), min_bytes=MIN_BYTES
    )


def _file_system_of(folder: Path) -> str:
    mounts = {Path(m.mountpoint): m.fstype for m in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    return next((mounts[path] for path in (resolved, *resolved.parents) if path in mounts), "")
