"""Systems of one kind, and what joins them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Joined:
    """Systems of one kind, and what joins them.

    Attributes:
        num_systems: each computes its share of the micro-batches, and stores the layers it owns.
        link: bytes a second of a system's link, each way.
        hop_seconds: from a system to another, or to a node of the network.
        store: bytes of weights a second that the store of a system hands out.
        adding: bytes of gradients a second that a system adds to a running sum.
        chunk_bytes: of a running sum, or of weights, that pass at once.
        network_copies: whether weights leave their owner once, and nodes of the network copy them;
            else each system passes them on to the next, chunk by chunk.
        turn_seconds: from a system's word that it takes a record, or a sum, until this leaves,
            beside a hop: what goes the same way delays it.
    """

    num_systems: int
    link: float
    hop_seconds: float
    store: float
    adding: float
    chunk_bytes: float
    network_copies: bool = False
    turn_seconds: float = 0.0

    @property
    def depth(self) -> int:
        """Doublings from one system to all."""
        return (self.num_systems - 1).bit_length()


def way_from(owner: int, num_systems: int) -> Sequence[int]:
    """Systems in the order in which a record of one of them passes from each to the next."""
    return [owner, *(system for system in range(num_systems) if system != owner)]
