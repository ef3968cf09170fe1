"""Plans over finer and finer splits, until one fits the device budget.

The first split follows from the budget: no layer is larger than a third of it. Where the leanest
plan of that split does not fit, layers are split further. What cannot be planned so is refused,
and the message names the smallest budget that can. A record that is kept on disk lies in host
memory while it is updated, so that the host budget bounds layers as well.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import RecordLayout
from openwafer.training.stream.layers import Partition, parameter_bytes
from openwafer.training.stream.plan.placement import (
    HostBudget,
    record_without_room,
    too_large_to_update,
)
from openwafer.training.stream.plan.search import PlanRequest, Shortfall, StreamPlan, try_plan

SplitAt: TypeAlias = Callable[..., Partition]
"""Makes the split whose layers are no larger than ``max_layer_bytes``, where they can be split."""

LAYERS_IN_BUDGET: Final = 3


def split_for_host(
    model: nn.Module,
    split_at: SplitAt,
    shares: Callable[[Partition], Iterable[tuple[Mapping[str, RecordLayout], HostBudget]]],
) -> SplitAt:
    """Splits no coarser than the hosts can update, record by record.

    Args:
        model: what is split.
        split_at: makes splits of any size.
        shares: makes the records of a split, those of each store, with what that may use.

    Raises:
        OpenwaferError: ``host-memory-too-small`` when a record of the finest split is too large,
            ``store-too-large`` when all of them are and may not go to a disk.
    """
    too_large: tuple[RecordLayout, HostBudget] | None = None
    sizes = sorted({0, *map(parameter_bytes, model.modules())}, reverse=True)
    for limit in (None, *sizes):
        too_large = _without_room(shares(split_at(max_layer_bytes=limit)))
        if too_large is None:
            return split_at if limit is None else partial(_no_coarser, split_at, limit)
    assert too_large is not None
    raise too_large_to_update(*too_large)


def _without_room(
    shares: Iterable[tuple[Mapping[str, RecordLayout], HostBudget]],
) -> tuple[RecordLayout, HostBudget] | None:
    for layouts, host in shares:
        record = record_without_room(layouts, host)
        if record is not None:
            return record, host
    return None


def _no_coarser(
    split_at: SplitAt, most_bytes: int, max_layer_bytes: int | None = None
) -> Partition:
    limit = most_bytes if max_layer_bytes is None else min(max_layer_bytes, most_bytes)
    return split_at(max_layer_bytes=limit)


def make_plan(request: PlanRequest, split_at: SplitAt) -> StreamPlan:
    """Choose the fastest plan that fits the budget.

    Args:
        request: what is planned; its split is one of those tried.
        split_at: makes the splits.

    Raises:
        OpenwaferError: ``device-budget-too-small`` when even the leanest plan does not fit, with
            the smallest budget that does.
    """
    shortfalls: dict[int, Shortfall] = {}
    budget = request.budget_bytes
    for limit, split in _splits(request.workload.model, split_at, budget):
        found = try_plan(replace(request, split=split))
        if isinstance(found, StreamPlan):
            return found
        shortfalls[limit] = found
    smallest = min(shortfalls.values(), key=lambda found: found.peak_bytes)
    assert budget is not None
    for limit, split in _splits(request.workload.model, split_at, smallest.peak_bytes):
        needed = LAYERS_IN_BUDGET * limit
        if limit in shortfalls or needed >= smallest.peak_bytes:
            continue
        found = try_plan(replace(request, split=split))
        if isinstance(found, StreamPlan):
            return found
        # It is tried by itself where the budget lets its layers be so large.
        reached = replace(found, peak_bytes=max(found.peak_bytes, needed))
        smallest = min(smallest, reached, key=lambda one: one.peak_bytes)
    raise _too_small(smallest, budget)


def _splits(
    model: nn.Module, split_at: SplitAt, budget: int | None
) -> Iterator[tuple[int, Partition]]:
    """Different splits under a budget, coarse to fine, each with the limit where it begins."""
    if budget is None:
        yield 0, split_at(max_layer_bytes=None)
        return
    sizes = {parameter_bytes(module) for module in model.modules()}
    last = None
    for limit in sorted({0} | {size for size in sizes if size <= budget // LAYERS_IN_BUDGET})[::-1]:
        split = split_at(max_layer_bytes=limit)
        if split != last:
            yield limit, split
        last = split


def _too_small(shortfall: Shortfall, budget: int) -> OpenwaferError:
    run, peak = shortfall.run, shortfall.peak_bytes
    largest = max(
        zip(run.activation_bytes, (visit.layer for visit in run.visits), strict=False),
        default=(0, "none"),
    )
    return error(
        "device-budget-too-small",
        f"{shortfall.which} needs {peak:,} bytes on the device, and the budget is {budget:,} bytes "
        f"({peak - budget:,} short)",
        notes=(f"the forward of {largest[1]!r} leaves {largest[0]:,} bytes, more than any other",),
        help="raise the device budget, or lower the micro-batch size or the sequence length",
    )
