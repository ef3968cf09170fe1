"""The context in which a user's own model is built without ever being held in memory."""

import tempfile
from pathlib import Path
from typing import Final

import psutil

from openwafer.config import PathLike, Size, bytes_of, path_of
from openwafer.diagnostics import error
from openwafer.training.store.deferred_memory import DeferredMemory

IN_MEMORY: Final = ("tmpfs", "ramfs")
MIN_BYTES: Final = 64 << 10


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
