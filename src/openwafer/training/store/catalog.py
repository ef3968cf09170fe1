"""Lists a store's records, the tier of each part, and the slots in its file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from openwafer.diagnostics import error
from openwafer.training.store.layout import Part, RecordLayout, index_by_name
from openwafer.training.store.part_state import PartState, Tier
from openwafer.training.store.store_file import FilePlan, PartKey, plan_file

Placement = Mapping[PartKey, Tier]


@dataclass(frozen=True)
class Catalog:
    """Records by name, a tier for every part of every record, and the plan of the file."""

    layouts: Mapping[str, RecordLayout]
    placement: Placement
    file_plan: FilePlan

    @property
    def has_disk_parts(self) -> bool:
        """Whether any part with bytes lives on disk."""
        return any(
            tier is Tier.DISK and self.layouts[record].part_bytes(part)
            for (record, part), tier in self.placement.items()
        )

    def new_states(self) -> dict[PartKey, PartState]:
        """A state for every part, with memory for those in DRAM, all bytes zero."""
        return {
            (record, part): PartState(
                record,
                part,
                tier,
                self.layouts[record].part_bytes(part),
                self.file_plan.offsets[record, part],
            )
            for (record, part), tier in self.placement.items()
        }

    def placed_anew(self, placement: Placement) -> "Catalog":
        """The same records and file under another placement."""
        complete = complete_placement(self.layouts, placement)
        return Catalog(self.layouts, complete, self.file_plan)


def make_catalog(layouts: Iterable[RecordLayout], placement: Placement) -> Catalog:
    """Check names and placement, and plan the file."""
    by_name = index_by_name(layouts)
    return Catalog(by_name, complete_placement(by_name, placement), plan_file(by_name.values()))


def complete_placement(layouts: Mapping[str, RecordLayout], placement: Placement) -> Placement:
    """Give parts without bytes the DRAM tier where they are left out.

    Raises `store-placement` for parts with bytes but no tier, and for records that do not exist.
    """
    keys = [(name, part) for name in layouts for part in Part]
    missing = [
        f"the {part} of {name!r}"
        for name, part in keys
        if (name, part) not in placement and layouts[name].part_bytes(part)
    ]
    unknown = [f"the {part} of {name!r}" for name, part in placement if name not in layouts]
    if missing or unknown:
        raise error(
            "store-placement",
            f"the placement does not fit the {len(layouts)} records",
            notes=(
                f"parts without a tier: {', '.join(missing) or 'none'}",
                f"placed, but in no record: {', '.join(unknown) or 'none'}",
            ),
            help="give every part that has bytes the tier DRAM or DISK",
        )
    return {key: placement.get(key, Tier.DRAM) for key in keys}
