"""How long a step takes on several systems that have measured how fast they pass it on.

By the events of its schedule: weights of several owners pass at once only where a schedule has room
for them, so bytes and rates alone do not tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Final, NamedTuple

from openwafer.training.collectives.chunks import chunk_bytes_at
from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.stream.plan.events.event_run import (
    ModelledRates,
    ModelledStep,
    layer_seconds,
    run_events,
)
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.traffic import StepTraffic
from openwafer.training.stream.schedule import Action, Kind, RecordBytes

MOST_CHUNKS: Final = 10_000
"""That pass from system to system in a run of events; more are modelled as fewer, longer ones."""


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
    """What a pass takes by the events of its schedule.

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
    actions = plan.schedule.actions
    forward = list(takewhile(lambda action: action.kind is not Kind.BACKWARD, actions))
    links, both = (run_events(_step(plan, passing, by_pass)) for by_pass in ((0.0, 0.0), computing))
    parts = (
        (links.forward, both.forward, forward, traffic.forward),
        (links.backward, both.backward, actions[len(forward) :], traffic.backward),
    )
    weights, gradients = passing.rates.weights, passing.rates.gradients
    rows = traffic.row_bytes / len(parts) / weights
    found = []
    for of_links, of_both, scheduled, moved in parts:
        # What no schedule foresees passes beside it.
        more = (moved.fetch - _bytes_of(scheduled, Kind.FETCH)) / weights
        more += (moved.push - _bytes_of(scheduled, Kind.PUSH)) / gradients
        found.append(JoinedPass(of_links + more, rows, of_both + more))
    return found[0], found[1]


def _bytes_of(actions: Sequence[Action], kind: Kind) -> int:
    return sum(action.num_bytes for action in actions if action.kind is kind)


def _step(plan: StreamPlan, passing: Passing, computing: Sequence[float]) -> ModelledStep:
    """The step of systems that read, add and update in no time.

    Gradients are longer here by as much as they pass more slowly.
    """
    assert plan.schedule is not None
    actions, visits, rates = plan.schedule.actions, plan.dry.visits, passing.rates
    weights = {one.target: one.num_bytes for one in actions if one.kind is Kind.FETCH}
    gradients = {
        one.target: round(one.num_bytes * rates.weights / rates.gradients)
        for one in actions
        if one.kind is Kind.PUSH
    }
    sizes = {r: RecordBytes(weights[r], gradients.get(r, 0)) for r in weights}
    moved = sum(weights.values()) + sum(gradients.values())
    chunk_bytes = max(chunk_bytes_at(rates.weights), moved * passing.num_systems // MOST_CHUNKS)
    return ModelledStep(
        plan.schedule,
        visits,
        sizes,
        layer_seconds(visits, sizes, *computing),
        dict.fromkeys(gradients, 0.0),
        ModelledRates(rates.weights, 0.0, inf, inf, chunk_bytes, turn_seconds=rates.turn_seconds),
        [1] * passing.num_systems,
        passing.owners,
    )
