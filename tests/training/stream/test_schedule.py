"""Schedules for any step: valid, within their bytes, every gradient pushed and applied once."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.schedule import (
    Kind,
    RecordBytes,
    Schedule,
    UpdateTiming,
    Visit,
    build,
    text,
)
from tests.golden_text import GoldenTexts
from tests.training.stream.drawn_steps import DrawnStep, drawn_steps
from tests.training.stream.schedule_rules import check

ALL_FIT = 1000


def targets(schedule: Schedule, kind: Kind) -> list[str]:
    return [action.target for action in schedule.actions if action.kind is kind]


def most_held_bytes(schedule: Schedule) -> int:
    held = most = 0
    for action in schedule.actions:
        held += action.num_bytes * {Kind.FETCH: 1, Kind.RELEASE: -1}.get(action.kind, 0)
        most = max(most, held)
    return most


@given(drawn_steps())
def test_every_schedule_passes_its_check(step: DrawnStep) -> None:
    check(step.build(), step.sizes, step.visits)


@given(drawn_steps())
def test_weights_never_pass_the_capacity(step: DrawnStep) -> None:
    schedule = step.build()
    assert most_held_bytes(schedule) <= schedule.capacity_bytes


@given(drawn_steps())
def test_every_trained_record_is_pushed_once_and_no_other(step: DrawnStep) -> None:
    assert sorted(targets(step.build(), Kind.PUSH)) == sorted(step.trained)


@given(drawn_steps())
def test_every_trained_record_is_updated_once_and_no_other(step: DrawnStep) -> None:
    assert sorted(targets(step.build(), Kind.UPDATE)) == sorted(step.trained)


@given(drawn_steps())
def test_what_is_fetched_is_released_as_often(step: DrawnStep) -> None:
    schedule = step.build()
    assert Counter(targets(schedule, Kind.FETCH)) == Counter(targets(schedule, Kind.RELEASE))


@given(drawn_steps())
def test_each_record_is_fetched_once_where_all_fit(step: DrawnStep) -> None:
    used = {record for visit in step.visits for record in visit.records}
    assert sorted(targets(step.build(more_bytes=ALL_FIT), Kind.FETCH)) == sorted(used)


@given(drawn_steps(has_one_size=True), st.integers(0, 20))
def test_more_room_never_costs_fetches_where_records_are_alike(
    step: DrawnStep, more_bytes: int
) -> None:
    more = step.build(more_bytes=more_bytes)
    assert len(targets(more, Kind.FETCH)) <= len(targets(step.build(), Kind.FETCH))


@given(drawn_steps())
def test_the_host_copy_of_a_trained_record_is_lent_once_for_an_update_on_push(
    step: DrawnStep,
) -> None:
    schedule = replace(step, timing=UpdateTiming.ON_PUSH).build()
    lent = [action.target for action in schedule.actions if action.keeps_loan]
    assert sorted(lent) == sorted(step.trained)


@given(drawn_steps())
def test_without_prefetch_only_the_next_layer_is_fetched(step: DrawnStep) -> None:
    schedule = replace(step, prefetch_layers=0).build()
    needs = {visit.layer: visit.records for visit in step.visits}
    waiting: list[str] = []
    for action in schedule.actions:
        if action.kind is Kind.FETCH:
            waiting.append(action.target)
        elif action.kind in (Kind.FORWARD, Kind.BACKWARD):
            assert set(waiting) <= set(needs[action.target])
            waiting.clear()


THREE = [Visit(name, (name,)) for name in ("embedding", "layer", "head")]
SIZES = {
    "embedding": RecordBytes(4096, 4000),
    "layer": RecordBytes(8192, 8192),
    "head": RecordBytes(4096, 0),
}


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_fetches_run_as_many_layers_ahead_as_asked(ahead: int) -> None:
    timing = UpdateTiming.ON_FETCH
    schedule = build(THREE, SIZES, timing=timing, capacity_bytes=16384, prefetch_layers=ahead)
    kinds = [action.kind for action in schedule.actions]
    assert kinds[: kinds.index(Kind.FORWARD)].count(Kind.FETCH) == 1 + ahead


@pytest.mark.parametrize("timing", UpdateTiming)
def test_a_schedule_prints_one_action_a_line(golden: GoldenTexts, timing: UpdateTiming) -> None:
    schedule = build(THREE, SIZES, timing=timing, capacity_bytes=12288)
    golden.check(f"schedule_{timing.name.lower()}.txt", text(schedule))


def test_a_layer_larger_than_the_capacity_is_refused_with_both_numbers() -> None:
    with pytest.raises(OpenwaferError) as refusal:
        build(THREE, SIZES, timing=UpdateTiming.ON_PUSH, capacity_bytes=8000)
    wanted = ["layer 'layer' needs 8,192 bytes", "8,000 bytes are set aside", "layer pattern"]
    assert [words for words in wanted if words not in str(refusal.value)] == []


def test_a_layer_that_is_called_twice_is_fetched_once_where_it_can_stay() -> None:
    visits = [Visit("a", ("a",)), Visit("b", ("b",)), Visit("a", ("a",))]
    sizes = {"a": RecordBytes(4, 4), "b": RecordBytes(4, 4)}
    schedule = build(visits, sizes, timing=UpdateTiming.ON_PUSH, capacity_bytes=8)
    assert targets(schedule, Kind.FETCH) == ["a", "b"]


def test_a_record_shared_by_two_layers_is_pushed_after_the_backward_of_both() -> None:
    visits = [Visit("first", ("tied",)), Visit("last", ("tied",))]
    sizes = {"tied": RecordBytes(4, 4)}
    schedule = build(visits, sizes, timing=UpdateTiming.ON_PUSH, capacity_bytes=4)
    assert [action.kind for action in schedule.actions[-5:-3]] == [Kind.BACKWARD, Kind.BACKWARD]


def test_bytes_are_added_up_by_kind() -> None:
    schedule = build(THREE, SIZES, timing=UpdateTiming.ON_PUSH, capacity_bytes=16384)
    assert schedule.total_bytes(Kind.PUSH) == 4000 + 8192
