"""Pushes: gradients on their way from the device, to be kept in the store or applied at once."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import torch

from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.device.device import Device, Recorder, Submitted
from openwafer.training.stream.link.fetches import Fetches, IdleLoans
from openwafer.training.stream.link.updates import (
    HostGradients,
    KeptGradients,
    RecordUpdates,
    StepRules,
)
from openwafer.training.stream.schedule import UpdateTiming


@dataclass(frozen=True)
class Arrived:
    """Gradients of a record.

    Attributes:
        gradients: by parameter name; ``None`` is zeros that are nowhere.
        is_on_host: whether they are in host memory already, and cross no link.
    """

    gradients: Mapping[str, torch.Tensor | None]
    is_on_host: bool = False

    def joined(self, later: "Arrived") -> "Arrived":
        """These and others of the same record, which came later: of parameters that had none."""
        return replace(self, gradients={**self.gradients, **later.gradients})

    @property
    def is_zero(self) -> bool:
        """Whether all of them are zeros that are nowhere."""
        return all(gradient is None for gradient in self.gradients.values())


@dataclass(frozen=True)
class _Push:
    record: str
    gradients: dict[str, torch.Tensor | None]
    is_on_host: bool
    loan: Loan
    after: Submitted

    @property
    def num_bytes(self) -> int:
        """Bytes of the gradients that are not zeros."""
        return sum(one.nbytes for one in self.gradients.values() if one is not None)


@dataclass(frozen=True)
class _UnderWay:
    push: _Push
    ended: "Future[None]"


class Pushes:
    """Takes the gradients of one record after the other; compute's own thread calls everything.

    A device that copies by itself has a thread for them, so that compute goes on meanwhile.

    Args:
        idle: loans asked for ahead.
        kept: which gradients the store keeps.
        updates: makes the updates.
        fetches: those under way, which compute may have to serve first.
        device: where gradients come from.
        recorder: receives the spans of pushes.

    Attributes:
        timing: whether they are applied at once, which is :attr:`UpdateTiming.ON_PUSH`, or kept.
        coefficient: what those that are applied at once are multiplied by.
    """

    def __init__(
        self,
        idle: IdleLoans,
        kept: KeptGradients,
        updates: RecordUpdates,
        fetches: Fetches,
        device: Device,
        recorder: Recorder,
    ) -> None:
        self.timing, self.coefficient = UpdateTiming.ON_FETCH, 1.0
        self._idle = idle
        self._kept = kept
        self._updates = updates
        self._fetches = fetches
        self._device = device
        self._recorder = recorder
        # How records are updated in this pass; read once, for it costs as much as a small update.
        self._step: StepRules | None = None
        self._held_back: dict[str, Arrived] = {}
        self._under_way: _UnderWay | None = None
        self._thread = (
            ThreadPoolExecutor(1, thread_name_prefix="push") if device.is_asynchronous else None
        )

    def begin_pass(self) -> None:
        """The hyper-parameters may be others than in the pass before."""
        self._step = None

    def take(self, record: str, arrived: Arrived) -> None:
        """Keep or apply the gradients of a record."""
        if self.timing is UpdateTiming.ON_PUSH and self._fetches.is_lent(record):
            # The rest of the backward pass sees the weights as they were.
            held_back = self._held_back.get(record)
            self._held_back[record] = arrived if held_back is None else held_back.joined(arrived)
        elif self._adds_nothing(record, arrived):
            # The push before, whose thread notes what it keeps.
            self.finish()
            self._kept.add_zeros(record, arrived.gradients)
        else:
            self._begin(record, arrived)

    def expect(self, records: Iterable[str]) -> None:
        """Ask for what the updates of these records need, whose gradients come next."""
        if self.timing is UpdateTiming.ON_PUSH:
            self._idle.ask_kept(records)

    def _adds_nothing(self, record: str, arrived: Arrived) -> bool:
        """Whether gradients are zeros to be kept, and would be added to nothing or to zeros."""
        is_kept = self.timing is UpdateTiming.ON_FETCH
        return is_kept and arrived.is_zero and not self._kept.has_bytes(record)

    def release(self, record: str) -> None:
        """The record's weights are lent no more: make the update that waited for that."""
        arrived = self._held_back.pop(record, None)
        if arrived is not None:
            self._begin(record, arrived)

    def _begin(self, record: str, arrived: Arrived) -> None:
        # One push under way at a time bounds the gradients that wait on the device.
        self.finish()
        loan = self._take_loan(record)
        gradients, after = dict(arrived.gradients), self._device.submitted()
        push = _Push(record, gradients, arrived.is_on_host, loan, after)
        if self._thread is None:
            self._serve(push)
        else:
            self._under_way = _UnderWay(push, self._thread.submit(self._serve, push))

    def _take_loan(self, record: str) -> Loan:
        if self.timing is UpdateTiming.ON_PUSH:
            return self._idle.take_kept(record)
        loan = self._idle.take_push(record)
        if self._kept.has_bytes(record):
            # When room was asked for, ahead of the push, there may have been none.
            loan.want_bytes(Part.GRADIENTS)
        return loan

    def _serve(self, push: _Push) -> None:
        is_applied = self.timing is UpdateTiming.ON_PUSH
        self._fetches.wait(push.loan, is_to_serve=True)
        try:
            if is_applied:
                self._update(push)
            else:
                self._keep(push)
        finally:
            push.loan.release(dirty=KEPT_PARTS if is_applied else (Part.GRADIENTS,))
        # Off the device before anybody learns that the push has ended.
        push.gradients.clear()

    def _update(self, push: _Push) -> None:
        if self._step is None:
            self._step = self._updates.updater.this_step(self.coefficient)
        self._updates.apply(push.record, push.loan, self._all_on_host(push), self._step)

    def _keep(self, push: _Push) -> None:
        with self._recorder.host("push", push.record, push.num_bytes), torch.no_grad():
            for name in self._kept.take_zeros(push.record):
                push.loan.tensor(name, Part.GRADIENTS).zero_()
            for name, is_new in self._kept.add(push.record, push.gradients).items():
                gradient, place = push.gradients[name], push.loan.tensor(name, Part.GRADIENTS)
                if not is_new:
                    place.add_(0.0 if gradient is None else self._on_host(push, gradient))
                elif gradient is None:
                    place.zero_()
                else:
                    self._copy(push, gradient, place)

    def _all_on_host(self, push: _Push) -> HostGradients:
        if self._thread is None:
            return push.gradients
        with self._recorder.host("push", push.record, push.num_bytes), torch.no_grad():
            return {
                name: None if gradient is None else self._on_host(push, gradient)
                for name, gradient in push.gradients.items()
            }

    def _on_host(self, push: _Push, gradient: torch.Tensor) -> torch.Tensor:
        if push.is_on_host:
            return gradient
        on_host = torch.empty_like(gradient, device="cpu")
        self._copy(push, gradient, on_host)
        return on_host

    def _copy(self, push: _Push, gradient: torch.Tensor, place: torch.Tensor) -> None:
        if push.is_on_host:
            place.copy_(gradient)
        else:
            self._device.download(gradient, place, push.after).wait()

    def finish(self) -> None:
        """Return when no push is under way; raises what the last one has raised."""
        if (last := self._take_last()) is not None:
            last.ended.result()

    def abandon(self) -> None:
        """Forget the gradients held back; return when no push is under way, failed or not."""
        self._take_last()
        self._held_back.clear()

    def _take_last(self) -> _UnderWay | None:
        """The push that was under way, which has ended."""
        last, self._under_way = self._under_way, None
        if last is not None:
            with self._idle.awaiting(last.push.loan):
                wait([last.ended])
        return last

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()
