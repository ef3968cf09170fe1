"""Any sequence of updates, commits and restarts, beside a plain picture of what must be there."""

import shutil
import tempfile
from pathlib import Path

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.parameter_store import ParameterStore, Tier
from tests.training.store.example_records import QUICK, content, example_layouts, read_part

LAYOUTS = {layout.name: layout for layout in example_layouts(4)}
KEYS = [(name, part) for name in LAYOUTS for part in Part]
RING_BYTES = 2 * 12288
records = st.sampled_from(sorted(LAYOUTS))
part_sets = st.sampled_from([(Part.WEIGHTS,), (Part.STATES,), KEPT_PARTS])


class StoreMachine(RuleBasedStateMachine):
    """The ring holds one record; the store is reopened under random placements."""

    @initialize(tiers=st.lists(st.sampled_from(Tier), min_size=len(KEYS), max_size=len(KEYS)))
    def create(self, tiers: list[Tier]) -> None:
        self.folder = Path(tempfile.mkdtemp())
        placement = dict(zip(KEYS, tiers, strict=True))
        self.store = ParameterStore.create(
            LAYOUTS.values(),
            placement,
            folder=self.folder / "store",
            ring_bytes=RING_BYTES,
            options=QUICK,
        )
        self.versions = dict.fromkeys(KEYS, -1)
        self.num_updates = 0
        self.store.commit(0, {})
        self.committed = dict(self.versions)

    @rule(record=records, parts=part_sets, is_fresh=st.booleans())
    def update(self, record: str, parts: tuple[Part, ...], is_fresh: bool) -> None:
        self.num_updates += 1
        loan = self.store.borrow(record, parts, fresh=parts if is_fresh else ())
        loan.wait()
        for part in parts:
            new = content(LAYOUTS[record], part, self.num_updates)
            loan.part_bytes_view(part).copy_(new)
            self.versions[record, part] = self.num_updates
        loan.release(dirty=parts)

    @rule(record=records, parts=part_sets)
    def read_ahead_in_vain(self, record: str, parts: tuple[Part, ...]) -> None:
        self.store.borrow(record, parts, read_only=True).release()

    def expected(self, record: str, part: Part) -> torch.Tensor:
        version = self.versions[record, part]
        if version >= 0:
            return content(LAYOUTS[record], part, version)
        return torch.zeros(LAYOUTS[record].part_bytes(part), dtype=torch.uint8)

    @rule(record=records, part=st.sampled_from(KEPT_PARTS))
    def read(self, record: str, part: Part) -> None:
        assert torch.equal(read_part(self.store, record, part), self.expected(record, part))

    @rule(record=records, part=st.sampled_from(KEPT_PARTS), is_given_back=st.booleans())
    def read_instead_of_overwriting(self, record: str, part: Part, is_given_back: bool) -> None:
        loans = [self.store.borrow(record, (part,), fresh=(part,)) for _ in range(2)]
        if is_given_back:
            loans.append(self.store.borrow(record, (part,), read_only=True))
            loans.pop(0).release()
            loans.pop(0).release()
        else:
            loans[0].want_bytes(part)
        loans[0].wait()
        assert torch.equal(loans[0].part_bytes_view(part), self.expected(record, part))
        for loan in loans:
            loan.release()

    @rule(waits=st.booleans())
    def commit(self, waits: bool) -> None:
        self.store.commit_begin(self.num_updates, {"updates": self.num_updates})
        self.committed = dict(self.versions)
        if waits:
            self.store.commit_wait()

    @rule(tiers=st.lists(st.sampled_from(Tier), min_size=len(KEYS), max_size=len(KEYS)))
    def reopen(self, tiers: list[Tier]) -> None:
        self.store.close()
        placement = dict(zip(KEYS, tiers, strict=True))
        self.store = ParameterStore.open(
            self.folder / "store", placement=placement, ring_bytes=RING_BYTES, options=QUICK
        )
        self.versions = dict(self.committed)

    @invariant()
    def memory_stays_within_its_bounds(self) -> None:
        assert self.store.ring_mapped_bytes <= RING_BYTES

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
