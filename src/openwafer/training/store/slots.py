"""The two slots a part has on disk, and which of them may be written.

A version that a manifest names, or is about to name, is pinned: its slot is never written. So the
newest version goes to the other slot, where later ones replace it until a commit pins it. While a
commit is under way both slots may be pinned; then the next write waits for the commit.
"""

from dataclasses import dataclass

NUM_SLOTS = 2


@dataclass(frozen=True)
class Version:
    """Bytes of a part in a slot, with their xxh3_64 checksum in hexadecimal."""

    slot: int
    checksum: str


@dataclass
class Slots:
    """Versions of one part; None stands for a part never written, all of whose bytes are zero.

    `working` is the newest on disk, `committed` the one of the last manifest, `pending` the one of
    the commit under way, where there is one.
    """

    working: Version | None = None
    committed: Version | None = None
    pending: Version | None = None

    def free_slot(self) -> int | None:
        """The slot the next version goes to; None while both are pinned."""
        pinned = {version.slot for version in (self.committed, self.pending) if version}
        if self.working and self.working.slot not in pinned:
            return self.working.slot
        return next((slot for slot in range(NUM_SLOTS) if slot not in pinned), None)

    def pin_working(self) -> None:
        """Make the newest version part of the commit under way."""
        self.pending = self.working

    def settle(self) -> None:
        """The commit is durable: its version replaces the one committed before."""
        self.committed = self.pending
        self.pending = None
