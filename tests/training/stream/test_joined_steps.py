"""A step on two systems that have measured their network, whose links carry a page a second."""

from dataclasses import replace

import pytest

from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.plan_record import StepBytes
from openwafer.training.stream.plan.step_time import JoinedPass, Passing, pass_seconds
from openwafer.training.stream.plan.traffic import StepTraffic
from openwafer.training.stream.schedule import UpdateTiming
from tests.training.stream.test_step_time import IDLE, NAMES, PAGE, make_plan

RATES = NetworkRates(weights=PAGE, gradients=PAGE)
FIRST = dict.fromkeys(NAMES, 0)
# Both layers for the forward, and the first one again for the backward; each is one chunk.
MOVED = StepTraffic(
    StepBytes(2 * PAGE, 0, 0, 0), StepBytes(PAGE, 2 * PAGE, 0, 0), UpdateTiming.ON_PUSH
)


def passes(
    traffic: StepTraffic = MOVED,
    rates: NetworkRates = RATES,
    owners: dict[str, int] = FIRST,
    computing: tuple[float, float] = IDLE,
) -> tuple[JoinedPass, JoinedPass]:
    plan = make_plan(UpdateTiming.ON_PUSH)
    return pass_seconds(plan, traffic, Passing(rates, 2, owners), computing)


def test_a_link_carries_weights_sums_and_what_comes_back() -> None:
    forward, backward = passes()
    # The gradients of the second layer pass beside the weights of the first one.
    assert (forward.network, backward.network) == (2.0, 1.0 + 2.0 + 1.0)


def test_sums_end_with_the_last_system_where_that_owns_them() -> None:
    owners = {"first": 1, "second": 0}
    # Weights and gradients pass each other, and nothing comes back behind the last sum.
    assert passes(owners=owners)[1].network == 1.0 + 1.0


def test_gradients_that_are_slower_are_waited_for() -> None:
    slow = passes(rates=replace(RATES, gradients=PAGE / 3))
    assert slow[0] == passes()[0]
    assert slow[1].network == pytest.approx(1.0 + 2 * 3.0 + 3.0)


def test_a_system_asks_for_each_sum_in_turn() -> None:
    late = passes(rates=replace(RATES, turn_seconds=0.25))
    assert late[1].network > passes()[1].network


def test_what_no_schedule_foresees_passes_beside_it() -> None:
    more = replace(MOVED, forward=StepBytes(3 * PAGE, PAGE, 0, 0))
    assert passes(more)[0].network == passes()[0].network + 1.0 + 1.0


def test_rows_are_waited_for_in_both_passes() -> None:
    rows = replace(MOVED, row_bytes=4 * PAGE)
    assert [one.rows for one in passes(rows)] == [2.0, 2.0]


def test_layers_compute_while_others_come() -> None:
    forward, _ = passes(computing=(4.0, 0.0))
    # Room for one: the second comes when the first has been computed.
    assert (forward.network, forward.computing) == (2.0, 1.0 + 2.0 + 1.0 + 2.0)
