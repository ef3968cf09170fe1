"""The axes on which streamed runs of one model differ, and the cells that run by default."""

from dataclasses import dataclass

from openwafer.training.plan_record import Activations
from openwafer.training.stream.plan.placement import StoreTier

TIERS = (StoreTier.DRAM, StoreTier.DISK)
# On disk: room for the largest record on its way, and for next to nothing else.
HOST_BYTES = {StoreTier.DRAM: 1 << 30, StoreTier.DISK: 300_000}
DEPTHS = (0, 1, None)  # layers that are prefetched


@dataclass(frozen=True)
class Others:
    """Values of the other axes where a depth meets a policy."""

    tier: StoreTier
    has_micro_batches: bool
    clips: bool


def default_values(prefetch_layers: int | None, policy: Activations) -> Others:
    """The one cell of a depth and a policy that runs by default.

    In these nine cells every two values of two axes meet.
    """
    depth, place = DEPTHS.index(prefetch_layers), list(Activations).index(policy)
    return Others(
        tier=TIERS[(depth + place) % 2],
        has_micro_batches=(depth // 2 + place) % 2 == 1,
        clips=(place // 2 + depth) % 2 == 1,
    )
