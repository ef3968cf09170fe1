"""The place of a pass in its schedule."""

from collections.abc import Iterator

from openwafer.training.stream.schedule import Action, Kind, Schedule

COMPUTE = (Kind.FORWARD, Kind.BACKWARD)


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

    def to(self, kind: Kind, layer: str) -> Iterator[Action]:
        """Pass the actions up to a layer's forward or backward, and that one silently."""
        found = self._find(kind, layer)
        if found is None:
            return
        while self.position < found:
            yield self.actions[self.position]
            self.position += 1
        self.position += 1

    def foresees(self, kind: Kind, layer: str) -> bool:
        """Whether a layer's forward or backward is still to come."""
        return self._find(kind, layer) is not None

    def rest(self) -> Iterator[Action]:
        """Pass all actions that are left."""
        left = self.actions[self.position :]
        self.end()
        yield from left

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
