"""An I/O thread that meets what nobody foresaw stops the store at once, with the true error."""

import dataclasses
import time
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.parameter_store import ParameterStore
from openwafer.training.store.store_file import FileIo
from openwafer.training.store.transfers import DiskTransfer
from tests.faults.failing_io import Call
from tests.training.store.example_records import QUICK, make_store, write_step

RING_BYTES = 2 * 12288


class RaisingIo(FileIo):
    """One kind of call raises what no disk does."""

    def __init__(self, call: Call, raised: Exception) -> None:
        self._call = call
        self._raised = raised

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._raise_at(Call.READ)
        return super().read(descriptor, buffer, offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._raise_at(Call.WRITE)
        return super().write(descriptor, buffer, offset)

    def sync(self, descriptor: int) -> None:
        self._raise_at(Call.SYNC)
        super().sync(descriptor)

    def replace(self, path: Path, data: bytes) -> None:
        self._raise_at(Call.REPLACE)
        super().replace(path, data)

    def _raise_at(self, call: Call) -> None:
        if call is self._call:
            raise self._raised


def committed_store(folder: Path) -> Path:
    with make_store(folder) as store:
        write_step(store, 1)
        store.commit(1, {})
    return folder


def run_a_step(folder: Path, file_io: FileIo) -> None:
    options = dataclasses.replace(QUICK, file_io=file_io)
    with ParameterStore.open(folder, ring_bytes=RING_BYTES, options=options) as store:
        write_step(store, 2)
        store.commit(2, {})


@pytest.mark.parametrize("call", Call)
@pytest.mark.parametrize("raised", [MemoryError("no room"), TypeError("odd"), RuntimeError("x")])
def test_the_error_of_a_thread_stops_the_store_at_once(
    tmp_path: Path, call: Call, raised: Exception
) -> None:
    folder = committed_store(tmp_path / "store")
    start = time.monotonic()
    expected = f"store-(read|write)-., a thread of the.*{type(raised).__name__}: {raised}"
    with pytest.raises(OpenwaferError, match=expected) as caught:
        run_a_step(folder, RaisingIo(call, raised))
    assert caught.value.__cause__ is raised
    assert time.monotonic() - start < QUICK.stall_seconds / 2
    with ParameterStore.open(folder, ring_bytes=RING_BYTES) as store:
        assert store.step == 1


def test_a_listener_that_raises_stops_the_store_at_once(tmp_path: Path) -> None:
    def refuse(transfer: DiskTransfer) -> None:
        raise ValueError(f"no {transfer.kind}s here")

    folder = committed_store(tmp_path / "store")
    options = dataclasses.replace(QUICK, on_transfer=refuse)
    with (
        pytest.raises(OpenwaferError, match="ended with ValueError: no reads here"),
        ParameterStore.open(folder, ring_bytes=RING_BYTES, options=options) as store,
    ):
        write_step(store, 2)
