"""Which parts of which records host memory is spent on."""

import torch

from openwafer.training.store.layout import ArraySpec, Part, RecordLayout, lay_out
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.plan.placement import HostBudget, StorePlacement, StoreTier, place

PAGE = 4096


def records(num_records: int) -> dict[str, RecordLayout]:
    """Records of a page of weights and two of states."""
    return {
        name: lay_out(
            name,
            [ArraySpec(name, torch.uint8, (PAGE,))],
            [ArraySpec(f"state/{name}", torch.uint8, (2 * PAGE,))],
        )
        for name in map(str, range(num_records))
    }


def in_dram(placement: StorePlacement, part: Part) -> list[str]:
    tiers = placement.tiers.items()
    return [record for (record, of), tier in tiers if of is part and tier is Tier.DRAM]


def test_weights_in_the_middle_of_the_model_are_kept_first() -> None:
    placement = place(records(7), HostBudget(StoreTier.DISK, 10 * PAGE, has_folder=True))
    assert in_dram(placement, Part.WEIGHTS) == ["2", "3", "4"]


def test_the_ring_and_what_is_kept_fit_the_budget() -> None:
    budget = 20 * PAGE
    placement = place(records(9), HostBudget(StoreTier.AUTO, budget, has_folder=True))
    assert placement.ring_bytes + placement.dram_bytes <= budget
