"""Decides which bytes a commit holds, while work on the next step already goes on.

A commit takes its place in the order of the borrow calls. Loans borrowed before it that may change
bytes belong to it, so it waits for their release; loans borrowed after it may change a part only
once the part's bytes of the commit are on disk.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from openwafer.diagnostics import error
from openwafer.training.store.parts import PartState, Version
from openwafer.training.store.store_file import PartKey

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def json_copy(state: Mapping[str, Json]) -> Mapping[str, Json]:
    """A copy of the state as a file would give it back. Raises `store-state-not-json`."""
    try:
        copy: Mapping[str, Json] = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as cause:
        raise error(
            "store-state-not-json",
            f"the state of a commit must be JSON: {cause}",
            help="encode tensors and bytes as text, such as base64",
        ) from cause
    return copy


@dataclass(frozen=True)
class PendingCommit:
    """A commit under way. `unwritten` are the parts whose bytes of this step are not on disk."""

    epoch: int
    step: int
    state: Mapping[str, Json]
    unwritten: set[PartState]


# Makes a commit durable, given the versions it pins. Raises OSError.
Publish = Callable[[PendingCommit, Mapping[PartKey, Version]], None]


class Commits:
    """The last commit, the one under way, and the epoch: the number of commits begun so far.

    All methods want the lock of the store held.
    """

    def __init__(self, parts: Iterable[PartState], publish: Publish) -> None:
        self.publish = publish
        self._kept = [part for part in parts if part.is_kept]
        # Of all parts together.
        self._num_owed = 0
        self.epoch = 0
        self.pending: PendingCommit | None = None
        self.step: int | None = None
        self.state: Mapping[str, Json] = {}

    def begin(self, step: int, state: Mapping[str, Json]) -> list[PartState]:
        """Start a commit; return the parts with changes that are in memory only."""
        unwritten = set()
        for part in self._kept:
            part.num_owed = part.num_writable
            if part.is_settled:
                part.slots.pin_working()
            else:
                unwritten.add(part)
        self._num_owed = sum(part.num_owed for part in unwritten)
        self.pending = PendingCommit(self.epoch, step, state, unwritten)
        self.epoch += 1
        return [part for part in self._kept if part in unwritten and part.is_dirty]

    def is_unwritten(self, part: PartState) -> bool:
        """Whether the commit under way still lacks the part's bytes."""
        return self.pending is not None and part in self.pending.unwritten

    def holds_back(self, part: PartState, epoch: int) -> bool:
        """Whether a loan of that epoch must not change the part yet."""
        pending = self.pending
        return pending is not None and epoch > pending.epoch and part in pending.unwritten

    def note(self, part: PartState) -> None:
        """Take the part's newest version into the commit under way, once there is no later one."""
        if self.pending is not None and part in self.pending.unwritten and part.is_settled:
            part.slots.pin_working()
            self.pending.unwritten.remove(part)

    @property
    def is_ready(self) -> bool:
        """All bytes of the commit under way are written."""
        return self.pending is not None and not self.pending.unwritten

    @property
    def is_owed(self) -> bool:
        """The commit under way waits for loans to be released."""
        return self._num_owed > 0

    def note_returned(self, part: PartState, epoch: int) -> None:
        """A loan of that epoch that might change the part has been released."""
        if part.is_kept and self.pending is not None and epoch <= self.pending.epoch:
            part.num_owed -= 1
            self._num_owed -= 1

    def describe_unwritten(self) -> str:
        """The parts that the commit under way lacks, and which of them are still lent."""
        unwritten = self.pending.unwritten if self.pending else ()
        return ", ".join(f"{part}{' (lent)' * bool(part.num_owed)}" for part in unwritten)

    def versions(self) -> dict[PartKey, Version]:
        """The versions that the commit under way pins."""
        return {
            (part.record, part.part): part.slots.pending
            for part in self._kept
            if part.slots.pending is not None
        }

    def settle(self, pending: PendingCommit) -> None:
        """The commit is durable."""
        for part in self._kept:
            part.slots.settle()
        self.step, self.state = pending.step, pending.state
        self.pending = None
