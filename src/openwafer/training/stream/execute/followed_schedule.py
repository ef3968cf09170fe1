"""Checks that a pass did what its schedule says: the executed log against the schedule.

The executor moves weights by the schedule; pushes and updates come when gradients do. So what was
planned and what was done are two accounts of one pass. Tests compare them after every pass; the
environment variable ``OPENWAFER_CHECK_SCHEDULE=1`` does the same in any process.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from openwafer.diagnostics import error
from openwafer.training.stream.execute.passes import COMPUTE, PassLog, PassObserver
from openwafer.training.stream.layers import PINNED, Partition
from openwafer.training.stream.schedule import Kind, Schedule, UpdateTiming

Entry: TypeAlias = tuple[Kind, str]

WEIGHTS: Final = (Kind.FETCH, Kind.RELEASE)


def is_checking() -> bool:
    """Whether passes are to be checked."""
    return os.environ.get("OPENWAFER_CHECK_SCHEDULE") == "1"


class ScheduleCheck(PassObserver):
    """Compares every pass whose backward has come to its end with its schedule.

    Args:
        split: the model's layers.
        elsewhere: records that another rank updates.
    """

    def __init__(self, split: Partition, elsewhere: Collection[str]) -> None:
        self._records_of = {layer.name: layer.records for layer in split.layers}
        self._elsewhere = elsewhere

    def end_pass(self, schedule: Schedule, log: PassLog) -> None:
        """See :class:`PassObserver`."""
        num_backwards = sum(action.kind is Kind.BACKWARD for action in schedule.actions)
        if len(log.backward) == num_backwards:
            elsewhere = self._elsewhere
            check_followed(schedule, log.executed, self._records_of, elsewhere=elsewhere)


def check_followed(
    schedule: Schedule,
    executed: Sequence[Entry],
    records_of: Mapping[str, Sequence[str]],
    *,
    elsewhere: Collection[str] = (),
) -> None:
    """Compare what a pass did with its schedule.

    Layers run in the planned order; between two of them the planned weights come and go, in that
    order, and no gradient is pushed that was not planned there. With updates on push, what was
    pushed is updated before the pass ends; with updates on fetch, what is updated has not been used
    in the pass.

    Args:
        schedule: of a pass that met no layer beside it, and whose backward came to its end.
        executed: kind and target of everything done.
        records_of: records that a layer needs, by its name.
        elsewhere: records that another rank updates.

    Raises:
        OpenwaferError: ``schedule-not-followed``, with the layer at which the two part.
    """
    planned = [(action.kind, action.target) for action in schedule.actions]
    problems = [*_parting(planned, executed)]
    own = [one for one in executed if one[0] in COMPUTE or one[1] not in elsewhere]
    problems += _updates(schedule.timing, own, records_of)
    if problems:
        raise error(
            "schedule-not-followed",
            f"a pass left its schedule: {problems[0]}",
            notes=tuple(problems[1:4]),
            help="report this with the model; unset OPENWAFER_CHECK_SCHEDULE to go on without the "
            "check, since a schedule decides when things happen and not what is computed",
        )


@dataclass
class _Stretch:
    """What lies between two compute actions."""

    after: str
    weights: list[Entry] = field(default_factory=list)
    pushed: set[str] = field(default_factory=set)


def _stretches(entries: Iterable[Entry]) -> list[_Stretch]:
    found = [_Stretch("the beginning")]
    for kind, target in entries:
        if kind in COMPUTE:
            found.append(_Stretch(f"{kind} {target}"))
        elif kind in WEIGHTS and target != PINNED:
            found[-1].weights.append((kind, target))
        elif kind is Kind.PUSH and target != PINNED:
            found[-1].pushed.add(target)
    return found


def _parting(planned: Sequence[Entry], executed: Sequence[Entry]) -> Iterator[str]:
    for wanted, found in zip(_stretches(planned), _stretches(executed), strict=False):
        if wanted.after != found.after:
            yield f"{found.after} came where {wanted.after} was planned"
            return
        if wanted.weights != found.weights:
            yield (
                f"after {wanted.after}, {_words(found.weights)} where {_words(wanted.weights)} "
                "was planned"
            )
        for record in sorted(found.pushed - wanted.pushed):
            yield f"after {wanted.after}, {record} was pushed, which was planned elsewhere"


def _updates(
    timing: UpdateTiming, executed: Sequence[Entry], records_of: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    used: set[str] = set()
    updated: set[str] = set()
    pushed: set[str] = set()
    for kind, target in executed:
        if kind is Kind.FORWARD:
            used.update(records_of[target])
        elif kind is Kind.PUSH:
            pushed.add(target)
        elif kind is Kind.UPDATE:
            updated.add(target)
            if timing is UpdateTiming.ON_FETCH and target in used:
                yield f"{target} was updated after a forward had used it"
    if timing is UpdateTiming.ON_PUSH:
        for record in sorted(pushed - updated):
            yield f"{record} was pushed and not updated"


def _words(entries: Sequence[Entry]) -> str:
    return ", ".join(f"{kind} {target}" for kind, target in entries) or "nothing"
