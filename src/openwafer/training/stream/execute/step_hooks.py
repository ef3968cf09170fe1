"""What is called between two steps, when the store holds every update and nothing is on its way."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from openwafer.diagnostics import error
from openwafer.training.store.layout import RecordLayout
from openwafer.training.store.record_access import Arrays


@dataclass(frozen=True)
class StepEnd:
    """The end of a step.

    Attributes:
        steps_applied: how many steps have been, this one included.
        records: what the store keeps, by record.
        lent: context in which a record's weights and states may be read and written.
    """

    steps_applied: int
    records: Mapping[str, RecordLayout]
    lent: Callable[[str], AbstractContextManager[Arrays]]


StepHook: TypeAlias = Callable[[StepEnd], None]
IsDue: TypeAlias = Callable[[int], bool]
"""Whether a hook is to be called after so many steps."""


def each(every: int) -> IsDue:
    """After each ``every``-th step.

    Raises:
        OpenwaferError: ``hook-never``, where that is less than one.
    """
    if every < 1:
        raise error(
            "hook-never",
            f"a hook between steps is to be called every {every} steps",
            help="give a whole number from 1",
        )
    return lambda steps_applied: steps_applied % every == 0


class StepHooks:
    """Hooks, each with the steps after which it is called."""

    def __init__(self) -> None:
        self._hooks: list[tuple[StepHook, IsDue]] = []

    def add(self, hook: StepHook, is_due: IsDue) -> None:
        """Call a hook after some of the steps."""
        self._hooks.append((hook, is_due))

    def is_any_due(self, steps_applied: int) -> bool:
        """Whether a hook is to be called after so many steps."""
        return any(is_due(steps_applied) for _, is_due in self._hooks)

    def call(self, end: StepEnd) -> None:
        """Call the hooks that are due."""
        for hook, is_due in self._hooks:
            if is_due(end.steps_applied):
                hook(end)
