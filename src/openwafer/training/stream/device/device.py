"""The device that computes: its memory, the link to the store, and the times of its work.

Two real devices share one protocol. :class:`CpuDevice` is a part of host memory with a metered cap
and, for measurements, a link of a stated rate; :class:`~openwafer.training.stream.device.cuda
.CudaDevice` is a GPU with pinned rings and copy streams.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final, Protocol, TypeAlias

import psutil
import torch

from openwafer.diagnostics import error
from openwafer.trace import Trace
from openwafer.training.stream.device.layer_backend import TORCH, LayerBackend
from openwafer.training.stream.flops import flops_of
from openwafer.training.torch_private import TorchDispatchMode, Unguarded, forward_level

Call: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


def call_operator(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an operator as it is."""
    return operator(*args, **kwargs)


class _Paused:
    """See :meth:`MemoryMeter.paused`; a generator in its place takes as long as a small copy."""

    __slots__ = ("_meter", "_was_paused")

    def __init__(self, meter: "MemoryMeter") -> None:
        self._meter, self._was_paused = meter, False

    def __enter__(self) -> None:
        self._was_paused, self._meter.is_paused = self._meter.is_paused, True

    def __exit__(self, *_: object) -> None:
        self._meter.is_paused = self._was_paused


class Crest:
    """The most bytes that a meter has counted since some moment; several moments may be followed.

    Attributes:
        first_bytes: at that moment.
        most_bytes: since then.
    """

    def __init__(self, first_bytes: int) -> None:
        self.first_bytes = self.most_bytes = first_bytes


class MemoryMeter(Unguarded, TorchDispatchMode):
    """Meter of the storages created or touched by operators while the mode is active.

    A storage counts from the first operator that returns a tensor on it until its last tensor
    dies, so views count once and freed activations stop counting at once. Works for real tensors
    and for fake ones alike, which is how a plan predicts the peak before anything is allocated.

    Attributes:
        used_bytes: bytes alive now.
        peak_bytes: the largest ``used_bytes`` since :meth:`reset_peak`.
        budget_bytes: the cap; passing it raises ``device-budget-exceeded``. ``None`` is no cap.
        call: calls an operator with its arguments.
        flops: of matrix products, convolutions and attentions since :meth:`reset_peak`.
    """

    counts_flops = True

    def __init__(self, budget_bytes: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.flops = 0
        self.is_paused = False
        self.call: Call = call_operator
        self._num_bytes: dict[weakref.ref[torch.UntypedStorage], int] = {}
        self._crests: list[weakref.ref[Crest]] = []
        # A storage may die in any thread, in this one while it counts another.
        self._lock = threading.RLock()

    def reset_peak(self) -> None:
        """Start a new peak from the bytes alive now, and count FLOPs from 0."""
        self.peak_bytes = self.used_bytes
        self.flops = 0

    def crest(self) -> Crest:
        """Follow the bytes alive from here on, for as long as somebody has the crest."""
        crest = Crest(self.used_bytes)
        self._crests.append(weakref.ref(crest, self._crests.remove))
        return crest

    def paused(self) -> AbstractContextManager[None]:
        """While open, what operators return lies in host memory and does not count."""
        return _Paused(self)

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor that no operator under this mode has returned, such as an input."""
        if tensor.layout is not torch.strided:
            raise error(
                "sparse-gradient",
                f"an operator returned a tensor of layout {tensor.layout}, and the parameter store "
                "keeps dense gradients",
                help="build embeddings with sparse=False",
            )
        storage = tensor.untyped_storage()
        reference = weakref.ref(storage, self._forget)
        num_bytes = storage.nbytes()
        if num_bytes == 0 or reference in self._num_bytes:
            return
        self._num_bytes[reference] = num_bytes
        with self._lock:
            self.used_bytes += num_bytes
        self._see_peak(tensor)

    def _see_peak(self, tensor: torch.Tensor) -> None:
        # One may die meanwhile.
        for reference in (*self._crests,):
            crest = reference()
            if crest is not None:
                crest.most_bytes = max(crest.most_bytes, self.used_bytes)
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes
            if self.budget_bytes is not None and self.used_bytes > self.budget_bytes:
                self._refuse(tensor)

    def hold(self, tensor: torch.Tensor) -> None:
        """Count a part of a storage that stays here, of which other parts may be of no use."""
        storage = tensor.untyped_storage()
        reference = weakref.ref(storage, self._forget)
        with self._lock:
            self._num_bytes[reference] = self._num_bytes.get(reference, 0) + tensor.nbytes
            self.used_bytes += tensor.nbytes
        self._see_peak(tensor)

    def give_up(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage no more, though it lives on."""
        reference = weakref.ref(tensor.untyped_storage())
        num_bytes = self._num_bytes.pop(reference, 0)
        with self._lock:
            self.used_bytes -= num_bytes

    def counts(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is among those that count."""
        return weakref.ref(tensor.untyped_storage()) in self._num_bytes

    def _forget(self, reference: "weakref.ref[torch.UntypedStorage]") -> None:
        num_bytes = self._num_bytes.pop(reference)
        with self._lock:
            self.used_bytes -= num_bytes

    def _refuse(self, tensor: torch.Tensor) -> None:
        raise error(
            "device-budget-exceeded",
            f"the device holds {self.used_bytes:,} bytes, over its budget of "
            f"{self.budget_bytes:,} bytes",
            notes=(f"the allocation that passed it: {tuple(tensor.shape)} {tensor.dtype}",),
            help="raise the device budget, or lower the micro-batch size or the sequence length",
        )

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = self.call(func, args, kwargs)
        if self.is_paused:
            return out
        if self.counts_flops:
            self.flops += flops_of(func, args, kwargs, out)
        if isinstance(out, torch.Tensor):
            self.count(out)
        elif isinstance(out, (tuple, list)):
            for item in out:
                if isinstance(item, torch.Tensor):
                    self.count(item)
        return out


Submitted: TypeAlias = torch.cuda.Event | None
"""A point behind all compute submitted so far; ``None`` where compute is done when it returns."""


# Passes that are metered although nothing asks for it: they show that a kind takes what it took.
ALWAYS_METERED: Final = 3
METERED_EVERY: Final = 100


class Transfer(Protocol):
    """A copy under way."""

    def wait(self) -> None:
        """Return once work that the calling thread submits from here on sees the copied bytes."""

    def wait_until_read(self) -> None:
        """Return once the source may be changed or given back."""


class Device(Protocol):
    """Memory, link and streams of the machine that computes.

    Attributes:
        torch_device: where tensors are made.
        is_asynchronous: whether copies run beside compute, so that host work belongs on a thread.
            Otherwise the device is host memory itself and copies nothing that is there already.
        memory_bytes: what there is of its memory.
        budget_bytes: cap on the bytes it may hold; ``None`` is no cap.
        overhead_bytes: what a step takes beside its tensors; every plan sets it aside.
        link_bytes_per_second: what the link is held to; ``None`` is as fast as it goes.
        backend: says who computes the layers.
    """

    torch_device: torch.device
    is_asynchronous: bool
    memory_bytes: int
    budget_bytes: int | None
    overhead_bytes: int
    link_bytes_per_second: float | None
    backend: LayerBackend

    def active(self, *, is_watched: bool = False) -> AbstractContextManager[object]:
        """Context of a pass: tensors made in it by the calling thread belong to the device.

        Args:
            is_watched: asks for the bytes of this very pass, where they are not read every time.
        """

    def forward_only(self) -> AbstractContextManager[object]:
        """Context of a forward whose backward, if any, is called by somebody else, elsewhere."""

    def watch(self, held: Iterable[torch.Tensor] = ()) -> None:
        """Ask for the bytes of the pass whose context is open, from here to its end.

        Args:
            held: tensors that are on the device already.
        """

    def watch_room(self) -> Callable[[], bool]:
        """Watch what the code that follows takes.

        Returns:
            Says, once it has run, whether it may run a second time within the budget, beside what
            it has left; yes where nothing is metered.
        """

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count memory that stays on the device from now on, each byte of it once.

        Raises:
            OpenwaferError: ``device-budget-exceeded``.
        """

    def host_section(self) -> AbstractContextManager[object]:
        """Context, inside :meth:`active`, in which tensors made belong to the host."""

    def submitted(self) -> Submitted:
        """The point behind all compute that the calling thread has submitted."""

    def upload(self, destination: torch.Tensor, source: torch.Tensor, after: Submitted) -> Transfer:
        """Begin to copy host memory into a device tensor of the same shape and dtype.

        Args:
            after: comes behind every use of the memory that ``destination`` now has.
        """

    def download(
        self, source: torch.Tensor, destination: torch.Tensor, after: Submitted
    ) -> Transfer:
        """Begin to copy a device tensor into host memory of the same shape and dtype.

        The tensor is kept alive meanwhile. A download begins when the one before has ended, so
        that no more than one holds device memory that nobody else wants.

        Args:
            after: comes behind the compute that makes ``source``.
        """

    def give_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in host memory with the values of one that nobody on the device uses any more.

        Where the device is host memory, it is the same one, which counts as the device's no more.
        """

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""

    @property
    def peak_bytes(self) -> int | None:
        """Most bytes held since :meth:`reset_peak`; ``None`` where they were not read."""

    @property
    def flops(self) -> int | None:
        """Of what was computed since :meth:`reset_peak`; ``None`` where they were not counted."""

    def reset_peak(self) -> None:
        """Start a new peak."""

    def synchronize(self) -> None:
        """Wait for all work submitted."""


def brought(device: Device, on_host: torch.Tensor) -> torch.Tensor:
    """A tensor on the device with the values of one in host memory, which may be changed then."""
    on_device = torch.empty_like(on_host, device=device.torch_device)
    transfer = device.upload(on_device, on_host, device.submitted())
    transfer.wait()
    transfer.wait_until_read()
    return on_device


class _Done:
    def wait(self) -> None:
        """Nothing to wait for."""

    def wait_until_read(self) -> None:
        """Nothing to wait for."""


_NOTHING: Final = nullcontext()
NO_TRANSFER: Final[Transfer] = _Done()
"""The transfer of what need not be copied."""


class HostTransfer:
    """A copy that is over when a thread of the host has ended it."""

    def __init__(self, ended: Future[None]) -> None:
        self._ended = ended

    def wait(self) -> None:
        """See :class:`Transfer`."""
        self._ended.result()

    def wait_until_read(self) -> None:
        """See :class:`Transfer`."""
        self._ended.result()


class CpuDevice:
    """Host memory as a device: metered, with an optional cap and an optional slow link.

    The meter slows small operators down, so a pass is metered where somebody asks for it; the
    first passes and one in a hundred are, in any case.

    Args:
        budget_bytes: cap; passing it is the error ``device-budget-exceeded``.
        link_bytes_per_second: rate of the link, in each direction; ``None`` copies at once, in the
            calling thread.
        backend: says who computes the layers, in this memory.
    """

    def __init__(
        self,
        budget_bytes: int | None = None,
        link_bytes_per_second: float | None = None,
        backend: LayerBackend = TORCH,
    ) -> None:
        self.backend = backend
        self.torch_device = torch.device("cpu")
        self.memory_bytes = psutil.virtual_memory().total
        self.budget_bytes = budget_bytes
        self.is_asynchronous = link_bytes_per_second is not None
        self.overhead_bytes = 0
        self.meter = MemoryMeter(budget_bytes)
        self._num_passes = 0
        self._wants_new_peak = True
        self._pass: ExitStack | None = None
        self._is_metering = False
        self.link_bytes_per_second = link_bytes_per_second
        self._links: dict[str, ThreadPoolExecutor] = {}
        self._last_download = NO_TRANSFER

    @contextmanager
    def active(self, *, is_watched: bool = False) -> Iterator[None]:
        """See :class:`Device`."""
        if self._pass is not None:
            yield
            return
        number = self._num_passes
        self._num_passes += 1
        with ExitStack() as self._pass:
            self._pass.callback(self._end_pass)
            if is_watched or number < ALWAYS_METERED or number % METERED_EVERY == 0:
                self.watch()
            yield

    def _end_pass(self) -> None:
        self._pass = None
        self._is_metering = False

    def forward_only(self) -> AbstractContextManager[object]:
        """See :class:`Device`."""
        return self.active()

    def watch(self, held: Iterable[torch.Tensor] = ()) -> None:
        """See :class:`Device`."""
        # Under a dispatch mode torch takes other formulas for tangents, with other last bits.
        has_tangents = forward_level() >= 0
        if self._pass is None or self._is_metering or has_tangents:
            return
        if self._wants_new_peak:
            self.meter.reset_peak()
            self._wants_new_peak = False
        self._is_metering = True
        self._pass.enter_context(self.meter)
        for tensor in held:
            self.meter.count(tensor)

    def watch_room(self) -> Callable[[], bool]:
        """See :class:`Device`."""
        budget, meter = self.budget_bytes, self.meter
        if budget is None or not self._is_metering:
            return lambda: True
        crest = meter.crest()
        return lambda: meter.used_bytes + crest.most_bytes - crest.first_bytes <= budget

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """See :class:`Device`."""
        for tensor in tensors:
            self.meter.hold(tensor)

    def host_section(self) -> AbstractContextManager[object]:
        """See :class:`Device`."""
        return self.meter.paused() if self._is_metering else _NOTHING

    def submitted(self) -> Submitted:
        """See :class:`Device`."""
        return None

    def upload(self, destination: torch.Tensor, source: torch.Tensor, after: Submitted) -> Transfer:
        """See :class:`Device`."""
        return self._copy("in", destination, source)

    def download(
        self, source: torch.Tensor, destination: torch.Tensor, after: Submitted
    ) -> Transfer:
        """See :class:`Device`."""
        self._last_download.wait()
        self._last_download = self._copy("out", destination, source)
        return self._last_download

    def give_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`Device`."""
        if tensor.untyped_storage().nbytes() == tensor.nbytes:
            self.meter.give_up(tensor)
            return tensor
        # The rest of its storage may be in use.
        with torch.no_grad(), self.host_section():
            return tensor.clone(memory_format=torch.contiguous_format)

    def _copy(self, direction: str, destination: torch.Tensor, source: torch.Tensor) -> Transfer:
        rate = self.link_bytes_per_second
        if rate is None:
            with self.host_section():
                destination.copy_(source.detach())
            return NO_TRANSFER
        link = self._links.get(direction)
        if link is None:
            link = ThreadPoolExecutor(1, thread_name_prefix=f"link-{direction}")
            self._links[direction] = link
        return HostTransfer(link.submit(self._copy_slowly, destination, [source], rate))

    @staticmethod
    def _copy_slowly(destination: torch.Tensor, held: list[torch.Tensor], rate: float) -> None:
        # Out of the list, the source is let go before anybody learns that the copy has ended.
        source = held.pop()
        start = time.perf_counter()
        with torch.no_grad():
            destination.copy_(source)
        left = source.numel() * source.element_size() / rate - (time.perf_counter() - start)
        if left > 0:
            time.sleep(left)

    @property
    def used_bytes(self) -> int:
        """See :class:`Device`."""
        return self.meter.used_bytes

    @property
    def peak_bytes(self) -> int | None:
        """See :class:`Device`."""
        return None if self._wants_new_peak else self.meter.peak_bytes

    @property
    def flops(self) -> int | None:
        """See :class:`Device`."""
        return None if self._wants_new_peak else self.meter.flops

    def reset_peak(self) -> None:
        """See :class:`Device`."""
        self._wants_new_peak = True

    def synchronize(self) -> None:
        """See :class:`Device`."""


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

    def compute(self, kind: str, layer: str) -> AbstractContextManager[None]:
        """Context of a layer's ``forward``, or of its ``recompute`` in the backward pass."""
        return _NOTHING if self.trace is None else self._span(kind, layer)

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
