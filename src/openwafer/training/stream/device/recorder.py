"""Times of the executor's work, kept when a trace is wanted."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from openwafer.trace import Trace
from openwafer.training.stream.device.device import Device

_NOTHING: Final = nullcontext()


class Recorder:
    """Adds the compute lane's spans and the device's memory to a trace.

    Attributes:
        trace: where events go; ``None`` keeps nothing and costs next to nothing.
        step: number of the training step, an argument of every span.
        waited_seconds: time the compute lane spent waiting for weights since it was last set.
    """

    def __init__(self, device: Device) -> None:
        self.trace: Trace | None = None
        self.step = 0
        self.waited_seconds = 0.0
        self._device = device
        self._backward: tuple[str, float] | None = None

    @contextmanager
    def _span(self, kind: str, layer: str) -> Iterator[None]:
        start = time.perf_counter()
        self._memory(start)
        try:
            yield
        finally:
            self._add(kind, layer, start)

    def _add(self, kind: str, layer: str, start: float) -> None:
        if self.trace is not None:
            end = time.perf_counter()
            name = f"{kind} {layer}"
            self.trace.span(name, "compute", start, end, layer=layer, kind=kind, step=self.step)
            self._memory(end)

    def _memory(self, now: float) -> None:
        if self.trace is not None:
            self.trace.counter("device memory", "memory", now, bytes=self._device.used_bytes)

    def forward(self, layer: str) -> AbstractContextManager[None]:
        """Context of a layer's forward."""
        return _NOTHING if self.trace is None else self._span("forward", layer)

    def recompute(self, layer: str) -> AbstractContextManager[None]:
        """Context of a layer's forward run again in the backward pass."""
        return _NOTHING if self.trace is None else self._span("recompute", layer)

    def host(self, kind: str, record: str, num_bytes: int) -> AbstractContextManager[None]:
        """Context of host work on a record: ``fetch``, ``push`` or ``update``."""
        # The trace that the work begins with: in a thread, its step may end meanwhile.
        trace = self.trace
        return _NOTHING if trace is None else self._host(trace, kind, record, num_bytes)

    @contextmanager
    def _host(self, trace: Trace, kind: str, record: str, num_bytes: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        end = time.perf_counter()
        args: dict[str, str | int] = {"layer": record, "kind": kind, "step": self.step}
        trace.span(f"{kind} {record}", kind, start, end, bytes=num_bytes, **args)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context of a wait for weights; a backward under way does not count meanwhile."""
        start = time.perf_counter()
        interrupted = None if self._backward is None else self._backward[0]
        self.end_backward()
        yield
        self.waited_seconds += time.perf_counter() - start
        if interrupted is not None:
            self.begin_backward(interrupted)

    def begin_backward(self, layer: str) -> None:
        """The backward of a layer begins, and with it that of the one before ends."""
        self.end_backward()
        if self.trace is not None:
            self._backward = (layer, time.perf_counter())

    def end_backward(self) -> None:
        """The backward under way, if any, is over."""
        if self._backward is not None:
            layer, start = self._backward
            self._backward = None
            self._add("backward", layer, start)
