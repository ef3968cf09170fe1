"""What happens in one pass over a model, forward and backward."""

from dataclasses import dataclass, field


@dataclass
class PassLog:
    """What happened in the pass under way, or in the last one.

    Attributes:
        visits: layer calls in forward order, by layer name.
        backward: indices of the visits that the backward pass reached.
        unplanned: layers served on demand although a schedule was there.
    """

    visits: list[str] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    unplanned: list[str] = field(default_factory=list)
