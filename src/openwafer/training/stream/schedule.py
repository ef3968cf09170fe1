"""A training step as data: what is fetched, run, pushed, updated and released, in order.

A schedule says what a layer's fetch and push are, never over which wire they go. It is built from
the order in which the layers run (:class:`Visit`), the bytes of their records and the device bytes
set aside for weights; :func:`text` prints it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from openwafer.diagnostics import error

NEVER: Final = 1 << 60


class Kind(StrEnum):
    """Kinds of work in a step."""

    READ = "read"  # store: begin reading a record's states from its tier
    FETCH = "fetch"  # store to device: weights
    FORWARD = "forward"
    BACKWARD = "backward"
    PUSH = "push"  # device to store: gradients
    UPDATE = "update"  # store: optimizer
    RELEASE = "release"  # device: weights of a record


class UpdateTiming(StrEnum):
    """When a record is updated.

    ``ON_PUSH`` updates as soon as its gradients are in the store, during the backward pass.
    ``ON_FETCH`` keeps the gradients and updates just before the record's first fetch of the next
    step, which makes the exact global norm known to every update without a barrier.
    """

    ON_PUSH = "on push"
    ON_FETCH = "on fetch"


@dataclass(frozen=True)
class Visit:
    """One call of a layer in the forward pass.

    Attributes:
        layer: name of the layer.
        records: records whose weights it needs, the pinned one left out.
        has_backward: whether the backward pass visits it too.
    """

    layer: str
    records: tuple[str, ...]
    has_backward: bool = True


@dataclass(frozen=True)
class RecordBytes:
    """Sizes of one record.

    Attributes:
        weights: bytes that cross the link on a fetch.
        gradients: bytes that cross it on a push; 0 for a frozen record.
    """

    weights: int
    gradients: int

    @property
    def is_trained(self) -> bool:
        """Whether the record is pushed and updated."""
        return self.gradients > 0


@dataclass(frozen=True)
class Action:
    """One entry of a schedule.

    Attributes:
        kind: what is done.
        target: layer of a forward or backward, record of anything else.
        num_bytes: bytes moved or freed; 0 for compute.
        keeps_loan: on a fetch or read: the host copy stays lent until the record's update.
    """

    kind: Kind
    target: str
    num_bytes: int = 0
    keeps_loan: bool = False


@dataclass(frozen=True)
class Schedule:
    """The actions of one pass, forward and backward, in the order of the compute lane.

    Attributes:
        actions: what the executor walks.
        timing: when records are updated.
        capacity_bytes: device bytes for streamed weights; the actions never hold more.
    """

    actions: tuple[Action, ...]
    timing: UpdateTiming
    capacity_bytes: int

    def total_bytes(self, kind: Kind) -> int:
        """Bytes moved by all actions of ``kind``."""
        return sum(action.num_bytes for action in self.actions if action.kind is kind)


def build(
    visits: Sequence[Visit],
    sizes: Mapping[str, RecordBytes],
    *,
    timing: UpdateTiming,
    capacity_bytes: int,
    prefetch_layers: int | None = None,
) -> Schedule:
    """Plan one pass.

    Weights stay on the device until the space is wanted by a record that is needed sooner, so the
    layers around the turn from forward to backward are fetched once.

    Args:
        visits: layer calls in forward order.
        sizes: bytes of every record that the visits name.
        timing: when records are updated.
        capacity_bytes: device bytes for streamed weights.
        prefetch_layers: how many visits ahead a fetch may run; ``None`` is as many as fit.

    Raises:
        OpenwaferError: one visit alone needs more than ``capacity_bytes``.
    """
    calls = [(Kind.FORWARD, visit) for visit in visits]
    calls += [(Kind.BACKWARD, visit) for visit in reversed(visits) if visit.has_backward]
    return walked(
        calls,
        sizes,
        timing=timing,
        capacity_bytes=capacity_bytes,
        prefetch_layers=prefetch_layers,
    )


def walked(
    calls: Sequence[tuple[Kind, Visit]],
    sizes: Mapping[str, RecordBytes],
    *,
    timing: UpdateTiming,
    capacity_bytes: int,
    prefetch_layers: int | None = None,
    held: Mapping[str, int] = MappingProxyType({}),
) -> Schedule:
    """Plan a pass, or what is left of one, from its forward and backward calls in their order.

    Args:
        held: bytes of the records that are on the device already.

    Raises:
        OpenwaferError: see :func:`build`.
    """
    needs = [visit.records for _, visit in calls]
    walk = _Walk(needs, sizes, capacity_bytes, timing, held)
    ahead = len(calls) if prefetch_layers is None else prefetch_layers
    for index, (kind, visit) in enumerate(calls):
        walk.fetch_for(index, index, demanded=visit.layer)
        for later in range(index + 1, min(index + 1 + ahead, len(calls))):
            if not walk.fetch_for(index, later, demanded=None):
                break
        walk.actions.append(Action(kind, visit.layer))
        walk.finish(index, is_backward=kind is Kind.BACKWARD)
    return Schedule(tuple(walk.actions), timing, capacity_bytes)


def keeping_gradients(schedule: Schedule) -> Schedule:
    """The pass of a schedule with updates on push, its updates before the next step's fetches."""
    actions: list[Action] = []
    trained = {action.target for action in schedule.actions if action.kind is Kind.PUSH}
    for action in schedule.actions:
        if action.kind is Kind.FETCH and action.target in trained:
            trained.remove(action.target)
            actions.append(Action(Kind.UPDATE, action.target))
        if action.kind not in (Kind.READ, Kind.UPDATE):
            actions.append(replace(action, keeps_loan=False))
    return Schedule(tuple(actions), UpdateTiming.ON_FETCH, schedule.capacity_bytes)


class _Walk:
    """The state of :func:`build`: what is on the device before each compute action."""

    def __init__(
        self,
        needs: Sequence[tuple[str, ...]],
        sizes: Mapping[str, RecordBytes],
        capacity_bytes: int,
        timing: UpdateTiming,
        held: Mapping[str, int],
    ) -> None:
        self.actions: list[Action] = []
        self._needs = needs
        self._sizes = sizes
        self._capacity_bytes = capacity_bytes
        self._timing = timing
        self._held = dict(held)
        self._lent: set[str] = set()
        self._fetched: set[str] = set()
        self._uses: dict[str, list[int]] = {}
        for index, records in enumerate(needs):
            for record in records:
                self._uses.setdefault(record, []).append(index)

    def _next_use(self, record: str, after: int) -> int:
        return next((index for index in self._uses.get(record, ()) if index >= after), NEVER)

    def fetch_for(self, now: int, index: int, demanded: str | None) -> bool:
        """Fetch what compute action ``index`` needs; say whether it all fits beside ``now``."""
        for record in self._needs[index]:
            if record not in self._held and not self._fetch(record, now, index):
                if demanded is None:
                    return False
                raise self._too_small(demanded, self._needs[index])
            is_last_use = self._uses[record][-1] == index
            if is_last_use and self._wants_states(record) and record not in self._lent:
                self._lent.add(record)
                self.actions.append(Action(Kind.READ, record, keeps_loan=True))
        return True

    def _wants_states(self, record: str) -> bool:
        return self._timing is UpdateTiming.ON_PUSH and self._sizes[record].is_trained

    def _fetch(self, record: str, now: int, index: int) -> bool:
        num_bytes = self._sizes[record].weights
        victims = self._victims(num_bytes, now, index)
        if victims is None:
            return False
        for victim in victims:
            self._release(victim)
        is_trained = self._sizes[record].is_trained
        if self._timing is UpdateTiming.ON_FETCH and is_trained and record not in self._fetched:
            self.actions.append(Action(Kind.UPDATE, record))
        self._fetched.add(record)
        keeps_loan = self._uses[record][-1] == index and self._wants_states(record)
        if keeps_loan:
            self._lent.add(record)
        self.actions.append(Action(Kind.FETCH, record, num_bytes, keeps_loan))
        self._held[record] = num_bytes
        return True

    def _victims(self, num_bytes: int, now: int, index: int) -> list[str] | None:
        """Records to release so that ``num_bytes`` fit: those used furthest in the future."""
        missing = sum(self._held.values()) + num_bytes - self._capacity_bytes
        victims: list[str] = []
        by_next_use = sorted(self._held, key=lambda record: -self._next_use(record, now))
        for record in by_next_use:
            if missing <= 0:
                break
            if self._next_use(record, now) <= index:
                return None
            victims.append(record)
            missing -= self._held[record]
        return victims if missing <= 0 else None

    def _release(self, record: str) -> None:
        self.actions.append(Action(Kind.RELEASE, record, self._held.pop(record)))

    def finish(self, index: int, *, is_backward: bool) -> None:
        """Push, update and release the records used for the last time by ``index``."""
        for record in self._needs[index]:
            if self._uses[record][-1] != index:
                continue
            if is_backward and self._sizes[record].is_trained:
                self.actions.append(Action(Kind.PUSH, record, self._sizes[record].gradients))
                if self._timing is UpdateTiming.ON_PUSH:
                    self.actions.append(Action(Kind.UPDATE, record))
            self._release(record)

    def _too_small(self, layer: str, records: Sequence[str]) -> Exception:
        needed = sum(self._sizes[record].weights for record in records)
        return error(
            "weights-capacity-too-small",
            f"layer {layer!r} needs {needed:,} bytes of weights on the device, "
            f"and {self._capacity_bytes:,} bytes are set aside for weights",
            help="raise the device budget, or split the layer with a layer pattern",
        )


def text(schedule: Schedule) -> str:
    """The schedule for people: one action a line, with its bytes."""
    lines = [
        f"{position:5d}  {action.kind:<8} {action.target:<44} "
        + (f"{action.num_bytes:>14,}" if action.num_bytes else "").rstrip()
        for position, action in enumerate(schedule.actions)
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"
