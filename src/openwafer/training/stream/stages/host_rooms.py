"""What hosts have for the stages of their ranks, which share it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class HostRooms:
    """What hosts have for stages.

    Attributes:
        names: of the host of each rank, in words.
        room_bytes: by host, for all its ranks together.
        source: where that comes from, in words.
    """

    names: tuple[str, ...]
    room_bytes: Mapping[str, int]
    source: str

    @property
    def equal_bytes(self) -> tuple[int, ...]:
        """What each rank may take where those of a host take as much each."""
        on_host = Counter(self.names)
        return tuple(self.room_bytes[name] // on_host[name] for name in self.names)

    def too_full(self, held_bytes: Sequence[int]) -> str | None:
        """The first host whose ranks hold more than it has for them.

        Args:
            held_bytes: by rank.
        """
        held: Counter[str] = Counter()
        for name, num_bytes in zip(self.names, held_bytes, strict=True):
            held[name] += num_bytes
        return next((name for name in held if held[name] > self.room_bytes[name]), None)
