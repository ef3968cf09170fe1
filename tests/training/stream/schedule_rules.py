"""The rules of a schedule, by replaying it: what its builder must keep, said another way."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from openwafer.training.stream.schedule import (
    Action,
    Kind,
    RecordBytes,
    Schedule,
    UpdateTiming,
    Visit,
)


class ScheduleInvalidError(Exception):
    """A schedule breaks a rule."""


def check(schedule: Schedule, sizes: Mapping[str, RecordBytes], visits: Sequence[Visit]) -> None:
    """Verify a schedule.

    Every compute action has its weights on the device and comes in the order of the visits; the
    device never holds more than the capacity and ends empty; nothing is fetched twice or released
    unheld. A trained record is pushed once, after its last backward, and updated once: after its
    push or, where updates wait for the next fetch, while its old weights are not on the device.

    Raises:
        ScheduleInvalidError: names the first action that breaks a rule.
    """
    replay = _Replay(schedule, sizes, visits)
    for position, action in enumerate(schedule.actions):
        problem = replay.take(action)
        if problem is not None:
            name = f"{action.kind} {action.target}"
            raise ScheduleInvalidError(f"action {position}, {name}: {problem}")
    problem = replay.end()
    if problem is not None:
        raise ScheduleInvalidError(f"the schedule ends, and {problem}")


class _Replay:
    """The state of :func:`check`: what the device holds and what is still to come."""

    def __init__(
        self, schedule: Schedule, sizes: Mapping[str, RecordBytes], visits: Sequence[Visit]
    ) -> None:
        self._schedule = schedule
        self._sizes = sizes
        self._records_of = {visit.layer: visit.records for visit in visits}
        self._compute = deque((Kind.FORWARD, visit.layer) for visit in visits)
        backward = [visit for visit in reversed(visits) if visit.has_backward]
        self._compute.extend((Kind.BACKWARD, visit.layer) for visit in backward)
        self._num_backwards = Counter(record for visit in backward for record in visit.records)
        self._trained = [name for name in self._num_backwards if sizes[name].is_trained]
        self._held: dict[str, int] = {}
        self._done: dict[Kind, set[str]] = {Kind.PUSH: set(), Kind.UPDATE: set()}

    def take(self, action: Action) -> str | None:
        """What is wrong with the next action."""
        match action.kind:
            case Kind.FETCH:
                return self._fetch(action.target)
            case Kind.RELEASE:
                return "is not held" if self._held.pop(action.target, None) is None else None
            case Kind.FORWARD | Kind.BACKWARD:
                return self._run(action.kind, action.target)
            case Kind.PUSH | Kind.UPDATE:
                return self._give_back(action.kind, action.target)
            case Kind.READ:
                return None

    def _fetch(self, record: str) -> str | None:
        if record in self._held:
            return "is on the device already"
        self._held[record] = self._sizes[record].weights
        total, capacity = sum(self._held.values()), self._schedule.capacity_bytes
        if total > capacity:
            return f"makes {total:,} bytes of weights, and {capacity:,} are set aside"
        return None

    def _run(self, kind: Kind, layer: str) -> str | None:
        due = self._compute.popleft() if self._compute else None
        if due != (kind, layer):
            return f"comes where {_words(due)} was due"
        missing = [name for name in self._records_of[layer] if name not in self._held]
        if missing:
            return f"runs without {', '.join(missing)}"
        if kind is Kind.BACKWARD:
            self._num_backwards.subtract(self._records_of[layer])
        return None

    def _give_back(self, kind: Kind, record: str) -> str | None:
        if record in self._done[kind]:
            return "comes a second time"
        self._done[kind].add(record)
        if kind is Kind.PUSH:
            return "comes before its last backward" if self._num_backwards[record] else None
        if self._schedule.timing is UpdateTiming.ON_PUSH:
            return None if record in self._done[Kind.PUSH] else "comes before its push"
        return "comes while its old weights are on the device" if record in self._held else None

    def end(self) -> str | None:
        """What is wrong once no action is left."""
        if self._held:
            return f"the device still holds {', '.join(self._held)}"
        if self._compute:
            return f"{_words(self._compute[0])} never runs"
        for kind, words in ((Kind.PUSH, "pushed"), (Kind.UPDATE, "updated")):
            missing = [name for name in self._trained if name not in self._done[kind]]
            if missing:
                return f"{missing[0]} is never {words}"
        return None


def _words(compute: tuple[Kind, str] | None) -> str:
    return "nothing" if compute is None else f"{compute[0]} {compute[1]}"
