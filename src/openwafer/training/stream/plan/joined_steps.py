"""How long a step takes on several systems that pass weights and gradients on.

By the formula of :mod:`openwafer.replica_steps`: weights of several owners pass at once only where
a schedule has room for them, so bytes and rates alone do not tell.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import NamedTuple

from openwafer.replica_steps import Joined, LayerWork, StreamedStep, replica_step
from openwafer.training.collectives.chunks import chunk_bytes_at
from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.traffic import StepTraffic
from openwafer.training.stream.schedule import (
    Action,
    Kind,
    RecordBytes,
    Schedule,
    UpdateTiming,
    Visit,
)


@dataclass(frozen=True)
class LayerSeconds:
    """What a device takes for a layer and a micro-batch; a backward with its recomputation."""

    forward: float
    backward: float


def layer_seconds(
    visits: Sequence[Visit], sizes: Mapping[str, RecordBytes], forward: float, backward: float
) -> dict[str, LayerSeconds]:
    """What layers take of passes of so many seconds: they share these as they share weights."""
    own = {visit.layer: sum(sizes[record].weights for record in visit.records) for visit in visits}
    total = sum(own[visit.layer] for visit in visits)
    shares = {layer: num_bytes / total for layer, num_bytes in own.items()}
    return {name: LayerSeconds(one * forward, one * backward) for name, one in shares.items()}


@dataclass(frozen=True)
class ScheduledStep:
    """A streamed step, and what its parts take.

    Attributes:
        schedule, visits, sizes: of the step; see :func:`~openwafer.training.stream.schedule.build`.
        layers: seconds of each layer for one micro-batch.
        updates: seconds of the update of each trained record.
    """

    schedule: Schedule
    visits: Sequence[Visit]
    sizes: Mapping[str, RecordBytes]
    layers: Mapping[str, LayerSeconds]
    updates: Mapping[str, float]

    def streamed(self, micro_batches: int, owners: Mapping[str, int]) -> StreamedStep:
        """The step as the formula takes it.

        Gradients of shared weights leave with their first use, and a layer of several records has
        the owner of the largest.

        Args:
            micro_batches: of all systems.
            owners: the system whose store has a record.
        """
        layers, seen = [], set[str]()
        forward, backward = self._fetched()
        for visit in self.visits:
            new = [record for record in visit.records if record not in seen]
            seen.update(new)
            takes = self.layers[visit.layer]
            largest = max(visit.records, key=lambda record: self.sizes[record].weights)
            layers.append(
                LayerWork(
                    takes.forward,
                    takes.backward,
                    sum(self.sizes[record].weights for record in visit.records),
                    sum(self.sizes[record].gradients for record in new),
                    sum(self.updates.get(record, 0.0) for record in new),
                    (forward[visit.layer], backward[visit.layer]),
                    owners[largest],
                )
            )
        is_on_fetch = self.schedule.timing is UpdateTiming.ON_FETCH
        return StreamedStep(layers, micro_batches, self.schedule.capacity_bytes, is_on_fetch)

    def _fetched(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Bytes that each layer is the next to use, fetched for its forward and its backward."""
        records_of = {visit.layer: visit.records for visit in self.visits}
        by_pass: dict[Kind, Counter[str]] = {Kind.FORWARD: Counter(), Kind.BACKWARD: Counter()}
        waiting: Counter[str] = Counter()
        for action in self.schedule.actions:
            if action.kind is Kind.FETCH:
                waiting[action.target] += action.num_bytes
            elif action.kind in by_pass:
                used = records_of[action.target]
                by_pass[action.kind][action.target] += sum(waiting.pop(one, 0) for one in used)
        return by_pass[Kind.FORWARD], by_pass[Kind.BACKWARD]


@dataclass(frozen=True)
class Passing:
    """Systems that weights and gradients pass between.

    Attributes:
        rates: measured.
        num_systems: how many there are.
        owners: the system whose store has a record.
    """

    rates: NetworkRates
    num_systems: int
    owners: Mapping[str, int]


class JoinedPass(NamedTuple):
    """What a pass takes on several systems.

    Attributes:
        network: that links are busy, beside compute.
        rows: for those that are computed elsewhere, which compute waits for.
        computing: with the operators of its layers, some of which links wait for.
    """

    network: float
    rows: float
    computing: float


def pass_seconds(
    plan: StreamPlan, traffic: StepTraffic, passing: Passing, computing: Sequence[float]
) -> tuple[JoinedPass, JoinedPass]:
    """Seconds of the forward and of the backward pass of a step on several systems.

    Args:
        plan, traffic: of one of them.
        passing: see :class:`Passing`.
        computing: seconds of the operators, by pass.
    """
    assert plan.schedule is not None
    actions, rates = plan.schedule.actions, passing.rates
    forward = list(takewhile(lambda action: action.kind is not Kind.BACKWARD, actions))
    # What a system reads, adds and updates is no part of what links wait for.
    joined = Joined(
        passing.num_systems,
        link=rates.weights,
        hop_seconds=0.0,
        store=inf,
        adding=inf,
        chunk_bytes=chunk_bytes_at(rates.weights),
        turn_seconds=rates.turn_seconds,
    )
    links, both = (
        replica_step(_streamed(plan, passing, by_pass), joined)
        for by_pass in ((0.0, 0.0), computing)
    )
    parts = (
        (links.forward_seconds, both.forward_seconds, forward, traffic.forward),
        (links.backward_seconds, both.backward_seconds, actions[len(forward) :], traffic.backward),
    )
    rows = traffic.row_bytes / len(parts) / rates.weights
    found = []
    for of_links, of_both, scheduled, moved in parts:
        # What no schedule foresees passes beside it.
        more = (moved.fetch - _bytes_of(scheduled, Kind.FETCH)) / rates.weights
        more += (moved.push - _bytes_of(scheduled, Kind.PUSH)) / rates.gradients
        found.append(JoinedPass(of_links + more, rows, of_both + more))
    return found[0], found[1]


def _bytes_of(actions: Sequence[Action], kind: Kind) -> int:
    return sum(action.num_bytes for action in actions if action.kind is kind)


def _streamed(plan: StreamPlan, passing: Passing, computing: Sequence[float]) -> StreamedStep:
    """The step with a block of micro-batches a system.

    Gradients are longer here by as much as they pass more slowly.
    """
    assert plan.schedule is not None
    actions, rates = plan.schedule.actions, passing.rates
    weights = {one.target: one.num_bytes for one in actions if one.kind is Kind.FETCH}
    gradients = {
        one.target: round(one.num_bytes * rates.weights / rates.gradients)
        for one in actions
        if one.kind is Kind.PUSH
    }
    sizes = {r: RecordBytes(weights[r], gradients.get(r, 0)) for r in weights}
    layers = layer_seconds(plan.dry.visits, sizes, *computing)
    step = ScheduledStep(plan.schedule, plan.dry.visits, sizes, layers, updates={})
    return step.streamed(passing.num_systems, passing.owners)
