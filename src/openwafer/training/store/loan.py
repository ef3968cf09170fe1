"""A record lent to the caller."""

from collections.abc import Collection

import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import Part
from openwafer.training.store.lending import Lending, Request
from openwafer.training.store.monitor import Monitor
from openwafer.training.store.part_state import PartState


class Loan:
    """Parts of one record, in host memory from `wait` to `release`."""

    def __init__(self, monitor: Monitor, lending: Lending, request: Request) -> None:
        self._monitor = monitor
        self._lending = lending
        self._request = request
        self.record = request.layout.name
        self.parts = frozenset(request.parts)

    @property
    def is_ready(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        with self._monitor.changed:
            return self._lending.is_ready(self._request)

    @property
    def is_blocked(self) -> bool:
        """Whether other loans may have to be released before `wait` can return.

        So it is while the loan has no room in the ring, or may not change bytes that a commit
        wants whose turn comes first.
        """
        with self._monitor.changed:
            return self._lending.is_blocked(self._request)

    @property
    def number(self) -> int:
        """Place in the order in which loans were asked for, and are given room."""
        return self._request.number

    def want_bytes(self, part: Part) -> None:
        """Let a part that was borrowed as fresh be read after all; to be called before `wait`.

        Raises `store-loan-misuse`.
        """
        with self._monitor.changed:
            self._require_unreleased("changed")
            self._require_part(part)
            if self._request.is_waited:
                raise self._misuse("is to be read, but wait() has returned already")
            self._lending.want_bytes(self._request, part)

    def wait(self) -> None:
        """Return when the bytes are in memory and, unless read-only, may be changed.

        Raises the error of the read (`store-read-failed`, `store-corrupt`), `store-stuck` when
        nothing moves, or the failure that stopped the store.
        """
        with self._monitor.changed:
            self._require_unreleased("waited for")
            if not self._request.is_waited:
                self._lending.wait(self._request)

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """View of one array, of its dtype and shape, on host memory, valid until the release."""
        return self._state_of(part).array(self._request.layout.place(array_name, part))

    def part_bytes_view(self, part: Part) -> torch.Tensor:
        """View of all bytes of a part: uint8, one dim of `part_bytes`, valid until the release."""
        return self._state_of(part).held_buffer().tensor

    def share(self, part: Part) -> "Loan":
        """A read-only loan of one part of this one; it may outlive this one, and is ready."""
        with self._monitor.changed:
            self._state_of(part)
            return Loan(self._monitor, self._lending, self._lending.share(self._request, part))

    def release(self, *, dirty: Collection[Part] = ()) -> None:
        """Give the parts back; those in `dirty`, and the fresh ones, were changed. Never blocks."""
        with self._monitor.changed:
            self._require_unreleased("released")
            self._require_changeable(frozenset(dirty))
            self._lending.release(self._request, frozenset(dirty))

    def _state_of(self, part: Part) -> PartState:
        request = self._request
        if request.is_released or not request.is_waited or part not in self.parts:
            self._require_unreleased("used")
            self._require_part(part)
            raise self._misuse("is used before wait() has returned")
        return request.parts[part]

    def _require_part(self, part: Part) -> None:
        if part not in self.parts:
            raise self._misuse(f"does not include the {part}")

    def _require_unreleased(self, what: str) -> None:
        if self._request.is_released:
            raise self._misuse(f"is {what} after its release")

    def _require_changeable(self, dirty: frozenset[Part]) -> None:
        if not dirty:
            return
        if self._request.is_read_only:
            raise self._misuse("is read-only and is released as changed")
        if not self._request.is_waited:
            raise self._misuse("is released as changed, but nobody waited for its bytes")
        if not dirty <= self.parts:
            raise self._misuse(
                f"is released with changed parts it lacks: {', '.join(sorted(dirty))}"
            )

    def _misuse(self, what: str) -> OpenwaferError:
        return error(
            "store-loan-misuse",
            f"the loan of {self._request} {what}",
            help="wait for a loan, use what was borrowed, then release it, once",
        )
