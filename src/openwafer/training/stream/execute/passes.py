"""A pass of a model: where it is, what has happened in it, who is told, what it refuses."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.stream.layers import PINNED, Partition
from openwafer.training.stream.schedule import Action, Kind, Schedule, UpdateTiming

COMPUTE: Final = (Kind.FORWARD, Kind.BACKWARD)
# Torch's words where a transform meets hooks for saved tensors.
_MEETS_HOOKS: Final = "don't yet support saved tensor hooks"


class Phase(Enum):
    """Where the executor is in a pass."""

    IDLE = "no pass is open"
    FORWARD = "in a pass, between layers"
    LAYER = "in a layer's forward"
    BACKWARD = "in a backward, whose end ends the pass"
    RECOMPUTE = "in a layer that runs again in the backward"


class PassObserver:
    """Is told of the passes of an executor; what it raises fails the pass."""

    def begin_pass(self) -> None:
        """A pass is about to begin."""

    def leave_layer(self) -> None:
        """All micro-batches have gone forward through a layer."""

    def begin_backward(self) -> None:
        """A backward has begun."""

    def end_pass(self, schedule: Schedule, log: "PassLog") -> None:
        """A pass ends, its own backward or not, that has met no layer beside its schedule."""


@dataclass
class PassLog:
    """What happened in the pass under way, or in the last one.

    Attributes:
        visits: layer calls in forward order, by layer name.
        first_visits: index of the first visit that had a record, by record.
        backward: indices of the visits that the backward pass reached.
        unplanned: layers that no schedule foresaw, or of an earlier pass: served on demand.
        executed: kind and target of everything done, in the order in which the compute lane did it.
    """

    visits: list[str] = field(default_factory=list)
    first_visits: dict[str, int] = field(default_factory=dict)
    backward: list[int] = field(default_factory=list)
    unplanned: list[str] = field(default_factory=list)
    executed: list[tuple[Kind, str]] = field(default_factory=list)

    def visit(self, layer: str, records: Iterable[str]) -> int:
        """Note a layer call that needs records; returns its index."""
        index = len(self.visits)
        self.visits.append(layer)
        for record in records:
            self.first_visits.setdefault(record, index)
        return index


class Walk:
    """A cursor over the actions of a schedule: which are due before the next compute.

    Attributes:
        actions: of the pass under way; none where nothing is scheduled.
        position: index of the next one.
    """

    def __init__(self) -> None:
        self.actions: tuple[Action, ...] = ()
        self.position = 0

    def begin(self, schedule: Schedule | None) -> None:
        """Go to the beginning of a schedule; ``None`` serves every layer on demand."""
        self.actions = schedule.actions if schedule else ()
        self.position = 0

    def to_compute(self) -> Iterator[Action]:
        """Pass the actions before the next forward or backward."""
        while self.position < len(self.actions):
            action = self.actions[self.position]
            if action.kind in COMPUTE:
                return
            yield action
            self.position += 1

    def to(self, kind: Kind, layer: str) -> Sequence[Action] | None:
        """Pass a layer's forward or backward and return the actions before it, if it is to come."""
        found = self._find(kind, layer)
        if found is None:
            return None
        passed = self.actions[self.position : found]
        self.position = found + 1
        return passed

    def rest(self) -> Sequence[Action]:
        """Pass all actions that are left."""
        left = self.actions[self.position :]
        self.end()
        return left

    def end(self) -> None:
        """Go behind the last action."""
        self.position = len(self.actions)

    @property
    def next_forward(self) -> str | None:
        """The layer whose forward comes next, if one does."""
        if self.position >= len(self.actions):
            return None
        action = self.actions[self.position]
        return action.target if action.kind is Kind.FORWARD else None

    def _find(self, kind: Kind, layer: str) -> int | None:
        for position in range(self.position, len(self.actions)):
            action = self.actions[position]
            if action.kind is kind and action.target == layer:
                return position
            if kind is Kind.FORWARD and action.kind is Kind.BACKWARD:
                return None
        return None


def graph_of_backward(where: str) -> OpenwaferError:
    """The error of a backward that makes a graph and has come to a layer or a weight."""
    return error(
        "backward-of-backward",
        f"backward(create_graph=True) came to the streamed {where}: its graph would keep weights "
        "that leave the device",
        help="leave create_graph out, or give a device memory in which the whole model is resident",
    )


class TransformsRefused:
    """Context of a forward, whose saved tensors are seen by hooks.

    Args:
        where: what runs.

    Raises:
        OpenwaferError: ``streamed-under-transform`` where it differentiates by torch.func.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        """Nothing is refused yet."""

    def __exit__(self, _kind: object, cause: BaseException | None, _traceback: object) -> None:
        """The forward has ended, or failed."""
        if not isinstance(cause, RuntimeError) or _MEETS_HOOKS not in str(cause):
            return
        raise error(
            "streamed-under-transform",
            f"the forward of {self._where!r} differentiates by torch.func, which cannot see "
            "weights come and go",
            help="differentiate with torch.autograd.grad or torch.autograd.functional",
        ) from cause


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
