"""What happens in one pass over a model, forward and backward."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from openwafer.training.stream.schedule import Kind


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
