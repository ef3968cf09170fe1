from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from openwafer.training.store.parts import Slots, Version


class SlotMachine(RuleBasedStateMachine):
    """Writes and commits in any order, beside a plain picture of what each slot holds."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots()
        self.num_versions = 0
        self.on_disk: dict[int, str] = {}
        self.is_pending = False

    @rule()
    def write(self) -> None:
        slot = self.slots.free_slot()
        if slot is not None:
            self.num_versions += 1
            self.on_disk[slot] = str(self.num_versions)
            self.slots.working = Version(slot, str(self.num_versions))

    @precondition(lambda self: not self.is_pending)
    @rule()
    def begin_commit(self) -> None:
        self.slots.pin_working()
        self.is_pending = True

    @precondition(lambda self: self.is_pending)
    @rule()
    def end_commit(self) -> None:
        self.slots.settle()
        self.is_pending = False

    @invariant()
    def every_version_is_still_on_disk(self) -> None:
        versions = self.slots.working, self.slots.committed, self.slots.pending
        assert all(self.on_disk[v.slot] == v.checksum for v in versions if v)

    @invariant()
    def a_write_only_waits_for_a_commit(self) -> None:
        assert self.is_pending or self.slots.free_slot() is not None


TestSlots = SlotMachine.TestCase


def test_versions_between_commits_replace_each_other_in_place() -> None:
    slots = Slots(working=Version(1, "new"), committed=Version(0, "old"))
    assert slots.free_slot() == 1


def test_a_write_during_a_commit_waits_when_both_slots_are_pinned() -> None:
    slots = Slots(working=Version(1, "new"), committed=Version(0, "old"))
    slots.pin_working()
    assert slots.free_slot() is None


def test_a_part_that_a_commit_leaves_unchanged_can_be_written_during_it() -> None:
    same = Version(0, "same")
    slots = Slots(working=same, committed=same)
    slots.pin_working()
    assert slots.free_slot() == 1
