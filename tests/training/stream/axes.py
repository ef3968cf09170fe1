"""The axes on which streamed runs of one model differ, and the cells that run by default."""

from openwafer.training.stream.activations import Activations
from openwafer.training.stream.placement import StoreTier

TIERS = (StoreTier.DRAM, StoreTier.DISK)
# On disk: room for the largest record on its way, and for next to nothing else.
HOST_BYTES = {StoreTier.DRAM: 1 << 30, StoreTier.DISK: 300_000}
DEPTHS = (0, 1, None)  # layers that are prefetched


def runs_by_default(
    tier: StoreTier, prefetch_layers: int | None, policy: Activations, *, clips: bool
) -> bool:
    """Whether this is the one cell of its depth and its policy that runs by default.

    In these nine cells every two values of two axes meet.
    """
    depth, place = DEPTHS.index(prefetch_layers), list(Activations).index(policy)
    return (tier is StoreTier.DISK, clips) == ((depth + place) % 2, (place // 2 + depth) % 2)
