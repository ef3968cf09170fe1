"""A schedule that breaks a rule is refused, with the place and the rule."""

import pytest

from openwafer.training.stream.schedule import (
    Action,
    Kind,
    RecordBytes,
    Schedule,
    UpdateTiming,
    Visit,
)
from tests.training.stream.schedule_rules import ScheduleInvalidError, check

VISITS = [Visit("a", ("a",)), Visit("b", ("b",)), Visit("c", ("c",), has_backward=False)]
SIZES = {"a": RecordBytes(4, 4), "b": RecordBytes(4, 4), "c": RecordBytes(4, 0)}
GOOD = """
fetch a, forward a, fetch b, forward b, release a, fetch c, forward c, release c,
backward b, push b, update b, release b, fetch a, backward a, push a, update a, release a
"""


def schedule_of(words: str, timing: UpdateTiming = UpdateTiming.ON_PUSH) -> Schedule:
    entries = [entry.split() for entry in words.replace("\n", " ").split(",")]
    actions = tuple(Action(Kind(kind), target, 4) for kind, target in entries)
    return Schedule(actions, timing, capacity_bytes=8)


PLANTED = [
    ("fetch b, forward b", "fetch b, fetch b, forward b", "action 3, fetch b: is on the device al"),
    ("release a,", "", "action 4, fetch c: makes 12 bytes of weights, and 8 are set aside"),
    ("fetch a, forward a", "release a, fetch a, forward a", "action 0, release a: is not held"),
    ("forward a", "forward b", "action 1, forward b: comes where forward a was due"),
    ("fetch b, ", "", "action 2, forward b: runs without b"),
    ("push b,", "push b, push b,", "action 10, push b: comes a second time"),
    ("update b,", "update b, update b,", "action 11, update b: comes a second time"),
    ("backward b, push b", "push b, backward b", "push b: comes before its last backward"),
    ("push b, update b", "update b, push b", "action 9, update b: comes before its push"),
    ("update a, release a", "update a", "the schedule ends, and the device still holds a"),
    ("backward a, push a, update a,", "", "the schedule ends, and backward a never runs"),
    ("push b, update b,", "", "the schedule ends, and b is never pushed"),
    ("update a,", "", "the schedule ends, and a is never updated"),
    ("backward a", "backward a, backward a", "backward a: comes where nothing was due"),
]


@pytest.mark.parametrize(("old", "new", "message"), PLANTED)
def test_a_planted_violation_is_refused(old: str, new: str, message: str) -> None:
    assert old in GOOD.replace("\n", " ")
    broken = schedule_of(GOOD.replace("\n", " ").replace(old, new, 1))
    with pytest.raises(ScheduleInvalidError) as refusal:
        check(broken, SIZES, VISITS)
    assert message in str(refusal.value)


def test_the_schedule_without_violations_passes() -> None:
    check(schedule_of(GOOD), SIZES, VISITS)


def test_an_update_on_fetch_with_old_weights_on_the_device_is_refused() -> None:
    late = "fetch a, update a, forward a, backward a, push a, release a"
    schedule = schedule_of(late, UpdateTiming.ON_FETCH)
    with pytest.raises(ScheduleInvalidError, match="comes while its old weights are on the device"):
        check(schedule, SIZES, VISITS[:1])


def test_an_update_on_fetch_before_the_fetch_passes() -> None:
    in_time = "update a, fetch a, forward a, backward a, push a, release a"
    check(schedule_of(in_time, UpdateTiming.ON_FETCH), SIZES, VISITS[:1])
