"""Bytes that a step moves over the link, from and to disk, and through an optimizer."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from openwafer.training.metrics.plan_record import StepBytes
from openwafer.training.store.layout import KEPT_PARTS, Part, RecordLayout
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.plan.placement import StorePlacement
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.schedule import Kind, Schedule, UpdateTiming


@dataclass(frozen=True)
class StepTraffic:
    """Bytes of a step by pass; a resident step is all in the forward pass.

    Attributes:
        forward, backward: by pass.
        timing: when records are updated.
        ring_records: how many records, of the largest, the store's ring has room for.
    """

    forward: StepBytes
    backward: StepBytes
    timing: UpdateTiming
    ring_records: float = 0.0

    @property
    def step(self) -> StepBytes:
        """Of both passes."""
        pairs = zip(astuple(self.forward), astuple(self.backward), strict=True)
        return StepBytes(*map(sum, pairs))


def traffic_of(
    plan: StreamPlan, placement: StorePlacement, timing: UpdateTiming, *, commits_steps: bool
) -> StepTraffic:
    """Bytes that one step of a plan moves over the link and from and to disk.

    A store with a part on disk writes those in DRAM as well where ``commits_steps``.
    """
    writes_all = commits_steps and Tier.DISK in placement.tiers.values()
    forward = _Pass(plan.layouts, placement.tiers, timing, writes_all=writes_all)
    backward = _Pass(plan.layouts, placement.tiers, timing, writes_all=writes_all)
    if plan.schedule is not None:
        if PINNED in plan.layouts:
            forward.fetch(PINNED, plan.layouts[PINNED].part_bytes(Part.WEIGHTS))
            backward.push(PINNED, plan.layouts[PINNED].part_bytes(Part.GRADIENTS))
            updating = forward if timing is UpdateTiming.ON_FETCH else backward
            updating.update(PINNED, reads_weights=False)
        _count_actions(plan.schedule, timing, forward, backward)
    largest = max(sum(layout.part_bytes(part) for part in Part) for layout in plan.layouts.values())
    return StepTraffic(forward.total(), backward.total(), timing, placement.ring_bytes / largest)


def _count_actions(
    schedule: Schedule, timing: UpdateTiming, forward: "_Pass", backward: "_Pass"
) -> None:
    now = forward
    lent: set[str] = set()
    for action in schedule.actions:
        match action.kind:
            case Kind.FETCH:
                now.fetch(action.target, action.num_bytes)
                if action.keeps_loan:
                    lent.add(action.target)
            case Kind.PUSH:
                now.push(action.target, action.num_bytes)
            case Kind.UPDATE:
                is_fetched = action.target in lent or timing is UpdateTiming.ON_FETCH
                now.update(action.target, reads_weights=not is_fetched)
            case Kind.BACKWARD:
                now = backward
            case Kind.READ | Kind.FORWARD | Kind.RELEASE:
                pass


class _Pass:
    """Counts the traffic of one pass; parts in DRAM are never read from disk."""

    def __init__(
        self,
        layouts: Mapping[str, RecordLayout],
        tiers: Mapping[tuple[str, Part], Tier],
        timing: UpdateTiming,
        *,
        writes_all: bool,
    ) -> None:
        self._writes_all = writes_all
        self._layouts = layouts
        self._tiers = tiers
        self._keeps_gradients = timing is UpdateTiming.ON_FETCH
        self._fetched = self._pushed = self._read = self._written = 0

    def _on_disk(self, name: str, part: Part) -> int:
        is_on_disk = self._tiers.get((name, part)) is Tier.DISK
        return self._layouts[name].part_bytes(part) if is_on_disk else 0

    def fetch(self, name: str, num_bytes: int) -> None:
        self._fetched += num_bytes
        self._read += self._on_disk(name, Part.WEIGHTS)

    def push(self, name: str, num_bytes: int) -> None:
        self._pushed += num_bytes
        if self._keeps_gradients:
            self._written += self._on_disk(name, Part.GRADIENTS)

    def update(self, name: str, *, reads_weights: bool) -> None:
        weights, states = self._on_disk(name, Part.WEIGHTS), self._on_disk(name, Part.STATES)
        self._read += states + (weights if reads_weights else 0)
        kept = sum(self._layouts[name].part_bytes(part) for part in KEPT_PARTS)
        self._written += kept if self._writes_all else weights + states
        if self._keeps_gradients:
            self._read += self._on_disk(name, Part.GRADIENTS)

    def total(self) -> StepBytes:
        return StepBytes(self._fetched, self._pushed, self._read, self._written)
