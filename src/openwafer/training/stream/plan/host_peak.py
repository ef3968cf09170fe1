"""Predicts the resident set of the process at its largest.

Planning runs all of a step's operators, on tensors without memory and in trials, so what the
interpreter, the libraries and the data take can be measured once that is done. On top come the
store and what a step puts beside it.
"""

from collections import Counter
from collections.abc import Collection, Iterable

import torch

from openwafer.training.metrics.host_memory import OWN_STATUS, read_host_memory
from openwafer.training.plan_record import Mode
from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.pages import PAGE_MAP, resident_bytes
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.replicas.ownership import StoreShare


def resident_now() -> int | None:
    """Bytes of the process's resident set; ``None`` where the kernel does not say."""
    return read_host_memory().resident_bytes if OWN_STATUS.exists() else None


def resident_beside(weights: Iterable[torch.Tensor]) -> int | None:
    """Bytes of the resident set that is left when these weights have gone to the store."""
    if not PAGE_MAP.exists():
        return None
    storages = {
        storage.data_ptr(): storage
        for storage in map(torch.Tensor.untyped_storage, weights)
        if storage.device.type == "cpu"
    }
    return read_host_memory().resident_bytes - sum(map(resident_bytes, storages.values()))


def host_peak(beside_bytes: int, plan: StreamPlan, share: StoreShare) -> int:
    """The most host memory that the process will hold, planning included.

    Args:
        beside_bytes: the resident set without store and step.
        plan: the step.
        share: what the store holds.
    """
    sizes = {
        (record, part): layout.part_bytes(part)
        for record, layout in share.layouts.items()
        for part in (KEPT_PARTS if plan.mode is Mode.RESIDENT else Part)
    }
    on_disk = sum(
        num_bytes for key, num_bytes in sizes.items() if share.tiers.get(key) is Tier.DISK
    )
    store_bytes = sum(sizes.values()) - on_disk + min(on_disk, share.ring_bytes)
    return max(beside_bytes + store_bytes + plan.dry.host_bytes, read_host_memory().peak_bytes)


def lent_bytes(plan: StreamPlan) -> int:
    """Most bytes of weights that a device uses in the memory of the store's ring."""
    if plan.schedule is None:
        return 0
    nested = (layer for layer in plan.split.layers if layer.parent is not None)
    largest = max((_weights_of(plan, layer.records) for layer in nested), default=0)
    # The layer's code may hold on to what it took of two experts before.
    return plan.schedule.capacity_bytes + plan.nested_capacity_bytes + 2 * largest


def _weights_of(plan: StreamPlan, records: Iterable[str]) -> int:
    return sum(plan.layouts[record].part_bytes(Part.WEIGHTS) for record in records)


def expert_bytes(plan: StreamPlan, *, joins: bool) -> int:
    """Most bytes of gradients of experts beside the store: the zeros of one that is not used.

    Args:
        plan: the step.
        joins: whether somebody watches gradients, as clipping does; those of the weights of one
            layer are joined then.
    """
    by_layer: Counter[str] = Counter()
    largest = 0
    for layer in plan.split.layers:
        if layer.slice_of is not None and layer.parent is not None:
            num_bytes = plan.layouts[layer.name].part_bytes(Part.WEIGHTS)
            by_layer[layer.parent] += num_bytes
            largest = max(largest, num_bytes)
    return largest + (max(by_layer.values(), default=0) if joins else 0)


def owned_bytes(
    plan: StreamPlan, owned: Collection[str], num_micro_batches: int, *, joins: bool
) -> int:
    """The same where ranks compute the experts they own for all of them.

    Args:
        plan: the step.
        owned: records of this rank.
        num_micro_batches: of all ranks, whose gradients of one layer are kept apart.
        joins: whether norms are taken, until which all gradients are kept; a whole weight comes to
            one rank for that.
    """
    by_layer: Counter[str] = Counter()
    by_weight: Counter[str] = Counter()
    for layer in plan.split.layers:
        if layer.slice_of is not None and layer.parent is not None:
            num_bytes = plan.layouts[layer.name].part_bytes(Part.WEIGHTS)
            by_weight[layer.slice_of] += num_bytes
            by_layer[layer.parent] += num_bytes if layer.name in owned else 0
    apart = num_micro_batches * max(by_layer.values(), default=0)
    return apart + (by_layer.total() + 2 * max(by_weight.values(), default=0) if joins else 0)
