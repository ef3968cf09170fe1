"""CUDA's streams and events on a CPU, which do copies as late as they may, in any order they may.

A GPU that is not busy does nearly all in the order in which it is asked, and seldom shows that an
event is missing. These streams do nothing before somebody waits, and then what comes next in any of
them. A copy whose memory is gone by then fails, for others might have it.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from torch.overrides import TorchFunctionMode

from openwafer.training.torch_private import DisableTorchFunction

MEMORY_BYTES = 1 << 40


class LateStream:
    """Work in its order; each piece says whether it could be done."""

    def __init__(self, runtime: "LateRuntime") -> None:
        self._runtime = runtime
        self.queue: deque[Callable[[], bool]] = deque()

    def submit(self, work: Callable[[], bool]) -> None:
        with self._runtime.lock:
            self.queue.append(work)

    def wait_event(self, event: "LateEvent") -> None:
        # As CUDA has it: for what was recorded last, if anything was.
        self.submit(event.passed.is_set)

    def synchronize(self) -> None:
        self._runtime.work_until(lambda: not self.queue)


class PromptStream(LateStream):
    """Of a device that computes when it is asked to: what is waited for is over behind the wait."""

    def submit(self, work: Callable[[], bool]) -> None:
        self._runtime.work_until(work)


class LateEvent:
    def __init__(self, runtime: "LateRuntime") -> None:
        self._runtime = runtime
        self.passed = threading.Event()
        self.passed.set()

    def record(self, stream: LateStream) -> None:
        self.passed = passed = threading.Event()

        def reach() -> bool:
            passed.set()
            return True

        stream.submit(reach)

    def synchronize(self) -> None:
        self._runtime.work_until(self.passed.is_set)


class LateRuntime:
    """All streams.

    Attributes:
        lock: of the queues.
        default: the stream of threads that have chosen none.
    """

    def __init__(self, seed: int) -> None:
        self.lock = threading.RLock()
        self.default: LateStream = PromptStream(self)
        self._random = random.Random(seed)
        self._chosen = threading.local()
        self._streams: list[LateStream] = []

    def stream(self, *_: object) -> LateStream:
        made = LateStream(self)
        self._streams.append(made)
        return made

    def current(self, *_: object) -> LateStream:
        return getattr(self._chosen, "stream", self.default)

    @contextmanager
    def on(self, stream: LateStream) -> Iterator[None]:
        before, self._chosen.stream = self.current(), stream
        with LateCopies(stream):
            yield
        self._chosen.stream = before

    def work_until(self, is_over: Callable[[], bool]) -> None:
        with self.lock:
            while not is_over():
                waiting = [one for one in self._streams if one.queue]
                self._random.shuffle(waiting)
                done = next((one for one in waiting if one.queue[0]()), None)
                assert done is not None, "the host waits for what no stream can do"
                done.queue.popleft()


class LateCopies(TorchFunctionMode):
    """Leaves copies that the host does not wait for, and those on the device, to a stream."""

    def __init__(self, stream: LateStream) -> None:
        super().__init__()
        self._stream = stream
        self._made: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.copy_ and (kwargs or any(args[0] is one for one in self._made)):
            self._stream.submit(copy_later(*args))
            return args[0]
        found = func(*args, **kwargs)
        if func is torch.empty_strided:
            self._made.append(found)
        return found


def copy_later(target: torch.Tensor, source: torch.Tensor) -> Callable[[], bool]:
    """A copy that keeps no memory alive."""
    places = [
        (ref(one.untyped_storage()), one.dtype, one.storage_offset(), one.size(), one.stride())
        for one in (target, source)
    ]

    def copy() -> bool:
        with DisableTorchFunction():
            held = [storage() for storage, *_ in places]
            assert None not in held, "the memory of a copy has gone before the copy was made"
            into, origin = (
                torch.empty(0, dtype=dtype).set_(storage, *place)  # type: ignore[arg-type]
                for storage, (_, dtype, *place) in zip(held, places, strict=True)
            )
            into.copy_(origin)
        return True

    return copy


def put_in_place(runtime: LateRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``torch.cuda`` be of these streams, and of a device whose memory is the host's."""
    code = SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
    of_device = {
        "get_device_properties": SimpleNamespace(total_memory=MEMORY_BYTES),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), 0),
        "get_per_process_memory_fraction": 1.0,
        "set_per_process_memory_fraction": None,
        "is_current_stream_capturing": False,
        **dict.fromkeys(("reset_peak_memory_stats", "synchronize")),
        "cudart": code,
        "device": nullcontext(),
    }
    for name, value in of_device.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: LateEvent(runtime))
    monkeypatch.setattr(torch.cuda, "Stream", runtime.stream)
    monkeypatch.setattr(torch.cuda, "stream", runtime.on)
    monkeypatch.setattr(torch.cuda, "current_stream", runtime.current)
    monkeypatch.setattr("torch._C._cuda_clearCublasWorkspaces", lambda: None, raising=False)
