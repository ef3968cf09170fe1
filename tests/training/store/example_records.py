"""Small records with content that is a function of record, part and step."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
import xxhash

from openwafer.training.store.layout import (
    KEPT_PARTS,
    ArraySpec,
    Part,
    RecordLayout,
    gaps,
    lay_out,
)
from openwafer.training.store.parameter_store import ParameterStore, Placement, StoreOptions, Tier

QUICK = StoreOptions(io_unit_bytes=8192, stall_seconds=120)
IMPATIENT = StoreOptions(stall_seconds=0.2)


def example_layouts(num_records: int = 3) -> list[RecordLayout]:
    """Records with arrays of several dtypes, one scalar and one empty array."""
    return [
        lay_out(
            f"layer{i}",
            [
                ArraySpec(f"layer{i}.weight", torch.float32, (40 + i, 64)),
                ArraySpec(f"layer{i}.bias", torch.bfloat16, (3,)),
                ArraySpec(f"layer{i}.none", torch.float32, (0, 4)),
            ],
            [
                ArraySpec(f"exp_avg/layer{i}.weight", torch.float32, (40 + i, 64)),
                ArraySpec(f"steps/layer{i}", torch.int64, ()),
            ],
            [ArraySpec(f"layer{i}.weight", torch.float32, (40 + i, 64))],
        )
        for i in range(num_records)
    ]


def placed(layouts: Sequence[RecordLayout], tier: Tier) -> Placement:
    return {(layout.name, part): tier for layout in layouts for part in Part}


def make_store(
    folder: Path | None,
    *,
    tier: Tier = Tier.DISK,
    num_records: int = 3,
    ring_bytes: int = 1 << 20,
    options: StoreOptions = QUICK,
) -> ParameterStore:
    layouts = example_layouts(num_records)
    placement = placed(layouts, tier)
    return ParameterStore.create(
        layouts, placement, folder=folder, ring_bytes=ring_bytes, options=options
    )


def content(layout: RecordLayout, part: Part, step: int) -> torch.Tensor:
    """All bytes of a part after `step`, uint8, with zeros between the arrays."""
    seed = xxhash.xxh3_64_intdigest(f"{layout.name} {part} {step}".encode())
    generator = torch.Generator().manual_seed(seed // 2)
    num_bytes = layout.part_bytes(part)
    data = torch.randint(0, 256, (num_bytes,), generator=generator, dtype=torch.uint8)
    for start, end in gaps(layout, part):
        data[start:end] = 0
    return data


def write_step(
    store: ParameterStore, step: int, parts: Collection[Part] = KEPT_PARTS, *, ahead: int = 1
) -> None:
    """Change all records as an update would: borrow ahead, check the old bytes, put the new."""
    layouts = list(store.layouts.values())
    loans = [store.borrow(layout.name, parts) for layout in layouts[:ahead]]
    for number, layout in enumerate(layouts):
        loan = loans.pop(0)
        loan.wait()
        for part in parts:
            loan.part_bytes_view(part).copy_(content(layout, part, step))
        loan.release(dirty=parts)
        following = layouts[number + ahead : number + ahead + 1]
        loans += [store.borrow(layout.name, parts) for layout in following]


def read_part(store: ParameterStore, record: str, part: Part) -> torch.Tensor:
    """A copy of the bytes a loan gives."""
    with store.lent(record, (part,), read_only=True) as loan:
        return loan.part_bytes_view(part).clone()


def poll(is_done: Callable[[], object], seconds: float = 120) -> bool:
    """Look again and again; False when `is_done` did not come true in time."""
    end = time.monotonic() + seconds
    while not is_done() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(is_done())


def differing_parts(store: ParameterStore, step: int | None) -> list[str]:
    """Kept parts whose bytes are not those of `step`, or not zero where it is None."""
    return [
        f"{part} of {layout.name}"
        for layout in store.layouts.values()
        for part in KEPT_PARTS
        if not torch.equal(
            read_part(store, layout.name, part),
            torch.zeros(layout.part_bytes(part), dtype=torch.uint8)
            if step is None
            else content(layout, part, step),
        )
    ]
