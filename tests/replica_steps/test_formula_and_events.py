"""The formula of a step on several systems against the events of its schedule.

They share neither code nor reasoning: the formula follows one layer after the other through
stations, the events are those of all systems.
"""

from dataclasses import replace
from itertools import product

import pytest

from openwafer.replica_steps import LayerWork
from tests.replica_steps.modelled_steps import dealt, like, shape, uneven
from tests.tables import case, checkerboard

SHAPES = {
    "computes": like(12, 0.01, 4, 0.0005),
    "waits for links": like(12, 0.0001, 8, 0.0005),
    "waits for updates": like(12, 0.0001, 8, 0.05),
    "computes and moves as long": like(12, 0.004, 8, 0.002),
    "many small layers": like(96, 0.0005, 0.25, 0.0001),
    "large ends": uneven(like(10, 0.002, 4, 0.001), times=3.0),
}
ROOMS = (2, 3, 1000)
NUMBERS = (1, 2, 3, 4, 16, 64, 192)
AIM = 0.05
DEALT = set(product(SHAPES, (2, 3, 4, 8, 16, 64, 192), ROOMS))
SHORT = set(product(("waits for links", "waits for updates"), (64,), (2, 3)))


def assert_agreement(
    layers: list[LayerWork], num_systems: int, room: int, *, network_copies: bool
) -> None:
    one = shape(layers, num_systems, room, network_copies=network_copies)
    assert one.formula_seconds == pytest.approx(one.event_seconds, rel=AIM)


@pytest.mark.parametrize(
    ("network_copies", "num_systems", "layers"),
    checkerboard((False, True), (1, 3, 16), SHAPES, one_in=4),
)
def test_formula_and_events_agree(
    network_copies: bool,
    num_systems: int,
    layers: list[LayerWork],
) -> None:
    assert_agreement(layers, num_systems, 3, network_copies=network_copies)


@pytest.mark.parametrize("num_systems", [2, 3])
@pytest.mark.parametrize("layers", SHAPES.values(), ids=SHAPES)
def test_they_agree_with_a_store_on_all_systems(layers: list[LayerWork], num_systems: int) -> None:
    assert_agreement(dealt(layers, num_systems), num_systems, 2, network_copies=False)


@pytest.mark.parametrize("owners", [(0, 1, 2, 0), (0, 1, 0, 0), (1, 0, 1, 2)])
def test_they_agree_where_sums_come_back_over_the_link_on_which_they_came(
    owners: tuple[int, ...],
) -> None:
    layers = like(len(owners), 0.00001, 16, 0.0)
    owned = [replace(layer, owner=owner) for layer, owner in zip(layers, owners, strict=True)]
    one = shape(owned, 3, 2, network_copies=False)
    links_alone = replace(one.joined, store=1e12, adding=1e12)
    one = replace(one, step=replace(one.step, updates_on_fetch=True), joined=links_alone)
    assert one.formula_seconds == pytest.approx(one.event_seconds, rel=AIM)


@pytest.mark.parametrize(
    "name", [case(name, by_default=False) for name in ("computes", "large ends")]
)
def test_they_agree_on_as_many_systems_as_a_cluster_has(name: str) -> None:
    assert_agreement(SHAPES[name], 192, 3, network_copies=False)


@pytest.mark.parametrize(("num_systems", "layers"), checkerboard((2, 3, 16), SHAPES, one_in=3))
def test_they_agree_where_systems_take_turns_to_answer(
    num_systems: int, layers: list[LayerWork]
) -> None:
    one = shape(layers, num_systems, 3, network_copies=False)
    one = replace(one, joined=replace(one.joined, turn_seconds=0.001))
    assert one.formula_seconds == pytest.approx(one.event_seconds, rel=AIM)


def test_they_agree_where_each_layer_waits_for_a_turn_of_its_own() -> None:
    one = shape(SHAPES["many small layers"], 16, 1, network_copies=False)
    one = replace(one, joined=replace(one.joined, turn_seconds=0.005))
    assert one.formula_seconds == pytest.approx(one.event_seconds, rel=AIM)


@pytest.mark.slow
@pytest.mark.parametrize("network_copies", [False, True])
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("num_systems", NUMBERS)
@pytest.mark.parametrize("layers", SHAPES.values(), ids=SHAPES)
def test_they_agree_with_any_room(
    layers: list[LayerWork], num_systems: int, room: int, *, network_copies: bool
) -> None:
    assert_agreement(layers, num_systems, room, network_copies=network_copies)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_systems", "room"), sorted(DEALT - SHORT))
def test_they_agree_with_any_room_and_a_store_on_all_systems(
    name: str, num_systems: int, room: int
) -> None:
    assert_agreement(dealt(SHAPES[name], num_systems), num_systems, room, network_copies=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_systems", "room"), sorted(SHORT))
def test_the_formula_is_short_where_owners_delay_what_they_pass_on(
    name: str, num_systems: int, room: int
) -> None:
    layers = dealt(SHAPES[name], num_systems)
    one = shape(layers, num_systems, room, network_copies=False)
    assert 0.89 < one.formula_seconds / one.event_seconds < 1 - AIM
