"""What a pass did is compared with its schedule, here with a mistake planted in the log."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.execute.passes import Entry, check_followed
from openwafer.training.stream.schedule import (
    Kind,
    RecordBytes,
    Schedule,
    UpdateTiming,
    Visit,
    build,
)

NAMES = ("first", "second")
RECORDS_OF = {name: (name,) for name in NAMES}


def schedule(timing: UpdateTiming) -> Schedule:
    visits = tuple(Visit(name, (name,)) for name in NAMES)
    sizes = dict.fromkeys(NAMES, RecordBytes(8, 8))
    return build(visits, sizes, timing=timing, capacity_bytes=8)


def log(timing: UpdateTiming) -> list[Entry]:
    return [(a.kind, a.target) for a in schedule(timing).actions if a.kind is not Kind.READ]


@pytest.mark.parametrize("timing", UpdateTiming)
def test_a_pass_that_follows_its_schedule_is_right(timing: UpdateTiming) -> None:
    check_followed(schedule(timing), log(timing), RECORDS_OF)


@pytest.mark.parametrize("timing", UpdateTiming)
@pytest.mark.parametrize(
    "gone",
    [(Kind.FETCH, "first"), (Kind.RELEASE, "second"), (Kind.BACKWARD, "second")],
)
def test_what_was_not_done_is_found(timing: UpdateTiming, gone: Entry) -> None:
    executed = log(timing)
    executed.remove(gone)
    with pytest.raises(OpenwaferError, match="left its schedule"):
        check_followed(schedule(timing), executed, RECORDS_OF)


def test_a_push_in_another_place_is_found() -> None:
    executed = log(UpdateTiming.ON_FETCH)
    executed.remove((Kind.PUSH, "first"))
    executed.insert(0, (Kind.PUSH, "first"))
    with pytest.raises(OpenwaferError, match="first was pushed, which was planned elsewhere"):
        check_followed(schedule(UpdateTiming.ON_FETCH), executed, RECORDS_OF)


def test_a_push_without_its_update_is_found() -> None:
    executed = log(UpdateTiming.ON_PUSH)
    executed.remove((Kind.UPDATE, "second"))
    with pytest.raises(OpenwaferError, match="second was pushed and not updated"):
        check_followed(schedule(UpdateTiming.ON_PUSH), executed, RECORDS_OF)


def test_an_update_of_weights_in_use_is_found() -> None:
    executed = [*log(UpdateTiming.ON_FETCH), (Kind.UPDATE, "first")]
    with pytest.raises(OpenwaferError, match="first was updated after a forward had used it"):
        check_followed(schedule(UpdateTiming.ON_FETCH), executed, RECORDS_OF)
