"""Bytes that a step moves over the link, from and to disk, and through an optimizer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Final

from openwafer.training.plan_record import StepBytes
from openwafer.training.store.layout import KEPT_PARTS, Part, RecordLayout
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.plan.placement import StorePlacement
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.schedule import Action, Kind, UpdateTiming

NOTHING: Final = frozenset[Part]()


class RingForecast:
    """The parts on disk that were used last, as many as the ring has room for.

    What is lent was used last, too, so the order of uses alone decides what is still there, as long
    as writes keep pace: what waits for its write stays, and what was used since makes way for it.

    Args:
        layouts, tiers: the records and where their parts live.
        num_bytes: of the ring.
    """

    def __init__(
        self,
        layouts: Mapping[str, RecordLayout],
        tiers: Mapping[tuple[str, Part], Tier],
        num_bytes: int,
    ) -> None:
        self._layouts = layouts
        self._tiers = tiers
        self._num_bytes = num_bytes
        self._held: dict[tuple[str, Part], int] = {}
        self._held_bytes = 0

    def on_disk(self, record: str, part: Part) -> int:
        """Bytes of a part that lives on disk; 0 for one in DRAM."""
        is_on_disk = self._tiers.get((record, part)) is Tier.DISK
        return self._layouts[record].part_bytes(part) if is_on_disk else 0

    def use(self, record: str, parts: Collection[Part], fresh: Collection[Part] = NOTHING) -> int:
        """Lend parts of a record, of which the fresh ones are overwritten; returns bytes read."""
        read_bytes = 0
        for part in parts:
            num_bytes = self.on_disk(record, part)
            is_held = self._forget(record, part)
            if num_bytes:
                self._held[record, part] = num_bytes
                self._held_bytes += num_bytes
            if not is_held and part not in fresh:
                read_bytes += num_bytes
        self._drop_oldest()
        return read_bytes

    def roll_back(self, changed: Collection[tuple[str, Part]]) -> int:
        """Forget parts that were changed; returns the bytes of those in DRAM, which are read."""
        read_bytes = 0
        for record, part in changed:
            self._forget(record, part)
            if self._tiers.get((record, part)) is Tier.DRAM:
                read_bytes += self._layouts[record].part_bytes(part)
        return read_bytes

    def _drop_oldest(self) -> None:
        while self._held_bytes > self._num_bytes:
            self._forget(*next(iter(self._held)))

    def _forget(self, record: str, part: Part) -> bool:
        """Whether the part was there, which it is no more."""
        num_bytes = self._held.pop((record, part), 0)
        self._held_bytes -= num_bytes
        return num_bytes > 0


@dataclass(frozen=True)
class StepTraffic:
    """Bytes of a step by pass; a resident step is all in the forward pass.

    Attributes:
        forward, backward: by pass.
        timing: when records are updated.
        ring_records: how many records, of the largest, the store's ring has room for.
        row_bytes: of rows that other systems compute with, and that compute waits for.
    """

    forward: StepBytes
    backward: StepBytes
    timing: UpdateTiming
    ring_records: float = 0.0
    row_bytes: int = 0

    @property
    def step(self) -> StepBytes:
        """Of both passes."""
        return _sum((self.forward, self.backward))


@dataclass(frozen=True)
class PlannedBytes:
    """Bytes of the kinds of step that a plan may run.

    Attributes:
        usual: of most steps.
        undone: of one that is updated at once, undone and run again; ``None`` where none is.
        kept: of one that keeps its gradients until their norm is known, in a run where others do
            not; ``None`` elsewhere.
    """

    usual: StepTraffic
    undone: StepBytes | None = None
    kept: StepBytes | None = None


def bytes_of(
    plan: StreamPlan,
    placement: StorePlacement,
    timing: UpdateTiming,
    *,
    ring_bytes: int,
    commits_steps: bool,
    speculates: bool,
) -> PlannedBytes:
    """Bytes that the steps of a plan move over the link and from and to disk.

    Args:
        plan: the step.
        placement: where the records live that are written here; others count as fetched alone.
        timing: when records are updated.
        ring_bytes: of the store; parts that are still there are not read.
        commits_steps: whether a store with a part on disk writes those in DRAM as well.
        speculates: whether updates on push are made before it is known that they are right.
    """
    count = partial(_Walk, placement=placement, ring_bytes=ring_bytes, commits_steps=commits_steps)
    largest = max(sum(layout.part_bytes(part) for part in Part) for layout in plan.layouts.values())
    walk = count(plan, timing=timing)
    # A step finds in the ring what the one before it has left there.
    walk.step()
    usual = StepTraffic(*walk.step(), timing, placement.ring_bytes / largest)
    if not speculates:
        return PlannedBytes(usual)
    undone = walk.undone_step()
    waiting = count(plan.timed(UpdateTiming.ON_FETCH), timing=UpdateTiming.ON_FETCH)
    waiting.step()
    return PlannedBytes(usual, undone, _sum(waiting.step()))


def _sum(passes: Sequence[StepBytes]) -> StepBytes:
    return StepBytes(*map(sum, zip(*map(astuple, passes), strict=True)))


@dataclass
class _Moved:
    """Bytes of one pass; see :class:`StepBytes`."""

    fetch: int = 0
    push: int = 0
    disk_read: int = 0
    disk_write: int = 0


class _Walk:
    """Counts the traffic of one step after the other."""

    def __init__(
        self,
        plan: StreamPlan,
        *,
        placement: StorePlacement,
        timing: UpdateTiming,
        ring_bytes: int,
        commits_steps: bool,
    ) -> None:
        self._layouts = plan.layouts
        self._received = frozenset(plan.dry.received)
        self._actions = () if plan.schedule is None else plan.schedule.actions
        self._ring = RingForecast(plan.layouts, placement.tiers, ring_bytes)
        self._keeps_gradients = timing is UpdateTiming.ON_FETCH
        writes_all = commits_steps and Tier.DISK in placement.tiers.values()
        # Of these a commit writes what is in DRAM, too.
        self._written = {record for record, _ in placement.tiers} if writes_all else set()
        self._now = self._backward = _Moved()
        self._updated: str | None = None
        self._nested = _by_call(plan)
        # Nested records whose updates wait for the next step's fetch or backward pass, with the
        # parts that these need.
        self._due: dict[str, Collection[Part]] = {}

    def step(self) -> tuple[StepBytes, StepBytes]:
        """One more step: its forward and its backward pass."""
        forward, self._backward = _Moved(), _Moved()
        self._now = forward
        if self._actions:
            self._begin_pinned()
            calls = iter(self._nested)
            for action in self._actions:
                if action.kind is Kind.BACKWARD and self._now is forward:
                    self._flush()
                self._act(action)
                if action.kind in (Kind.FORWARD, Kind.BACKWARD):
                    for kind, record in next(calls, ()):
                        self._act_nested(kind, record)
            self._end_pinned()
        return StepBytes(**vars(forward)), StepBytes(**vars(self._backward))

    def undone_step(self) -> StepBytes:
        """A step that is rolled back to its beginning and made again."""
        written, self._written = self._written, set()
        undone = self.step()
        self._written = written
        updated = {action.target for action in self._actions if action.kind is Kind.UPDATE}
        updated |= {
            record for call in self._nested for kind, record in call if kind is not Kind.FETCH
        }
        changed = [(name, part) for name in (*updated, PINNED) for part in KEPT_PARTS]
        read_again = StepBytes(0, 0, self._ring.roll_back(changed), 0)
        return _sum((*undone, read_again, *self.step()))

    def _act(self, action: Action) -> None:
        record = action.target
        match action.kind:
            case Kind.FETCH:
                self._fetch(record, KEPT_PARTS if action.keeps_loan else (Part.WEIGHTS,))
            case Kind.READ:
                self._backward.disk_read += self._ring.use(record, KEPT_PARTS)
            case Kind.PUSH:
                self._push(record, action.num_bytes)
            case Kind.UPDATE:
                self._update(record)
            case Kind.BACKWARD:
                self._now = self._backward
            case Kind.FORWARD | Kind.RELEASE:
                pass

    def _act_nested(self, kind: Kind, record: str) -> None:
        match kind:
            case Kind.FETCH:
                if (parts := self._due.pop(record, None)) is not None:
                    self._update(record, parts)
                self._fetch(record, (Part.WEIGHTS,))
            case Kind.PUSH:
                weights = self._layouts[record].parts[Part.WEIGHTS]
                self._push(record, sum(place.num_bytes for place in weights))
                self._update_nested(record, tuple(Part))
            case Kind.UPDATE:
                # Of zeros, which nobody moves or keeps.
                self._update_nested(record, KEPT_PARTS)
            case _:
                pass

    def _update_nested(self, record: str, parts: Collection[Part]) -> None:
        if self._keeps_gradients:
            self._due[record] = parts
        else:
            self._use(record, KEPT_PARTS)
            self._update(record)

    def _flush(self) -> None:
        """Update what waits and no fetch has updated, as is done before gradients arrive."""
        for record, parts in self._due.items():
            self._update(record, parts)
            self._updated = None
        self._due.clear()

    def _begin_pinned(self) -> None:
        if PINNED in self._layouts:
            if self._keeps_gradients:
                self._update(PINNED)
            self._fetch(PINNED, (Part.WEIGHTS,))

    def _end_pinned(self) -> None:
        if PINNED in self._layouts:
            self._push(PINNED, self._layouts[PINNED].bytes_of_weights(self._received))
            if not self._keeps_gradients:
                self._use(PINNED, KEPT_PARTS)
                self._update(PINNED)

    def _use(self, record: str, parts: Collection[Part]) -> None:
        self._now.disk_read += self._ring.use(record, parts)

    def _fetch(self, record: str, parts: Collection[Part]) -> None:
        self._now.fetch += self._layouts[record].part_bytes(Part.WEIGHTS)
        if record == self._updated:
            self._updated = None
        else:
            self._use(record, parts)

    def _push(self, record: str, num_bytes: int) -> None:
        self._now.push += num_bytes
        if self._keeps_gradients:
            self._ring.use(record, (Part.GRADIENTS,), fresh=(Part.GRADIENTS,))
            self._now.disk_write += self._ring.on_disk(record, Part.GRADIENTS)

    def _update(self, record: str, parts: Collection[Part] = tuple(Part)) -> None:
        if self._keeps_gradients:
            self._use(record, parts)
            # Its fetch is next, out of the same loan.
            self._updated = record
        else:
            self._ring.use(record, KEPT_PARTS, fresh=KEPT_PARTS)
        layout = self._layouts[record]
        self._now.disk_write += sum(
            layout.part_bytes(part) if record in self._written else self._ring.on_disk(record, part)
            for part in KEPT_PARTS
        )


def _by_call(plan: StreamPlan) -> list[list[tuple[Kind, str]]]:
    """What each layer call of a step moves of the records nested in it."""
    calls: list[list[tuple[Kind, str]]] = []
    for kind, name in plan.dry.nested:
        if kind in (Kind.FORWARD, Kind.BACKWARD):
            calls.append([])
        elif calls:
            calls[-1].append((kind, name))
    return calls
