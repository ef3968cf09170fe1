"""A run whose machine loses power at any moment goes on to the bits of the unbroken one."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import CheckpointConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests import forked
from tests.faults.power_loss import PAGE_BYTES, Disk
from tests.tables import case
from tests.training.kill.conftest import KINDS
from tests.training.kill.killed_runs import (
    NUM_STEPS,
    Moment,
    final_arrays,
    kill_at,
    random_moment,
    run_to_the_end,
)
from tests.training.session.tiny_runs import differing
from tests.training.stream.axes import TIERS

KEPT, WRITTEN = b"k" * 64 * PAGE_BYTES, b"w" * 64 * PAGE_BYTES


def fail_power_and_resume(config: RunConfig, moment: Moment, seed: int) -> None:
    """End a run by a power failure, another one by a second, and bring it to its end."""
    chance = random.Random(seed)
    config.folder.mkdir()
    for number in range(2):
        kept = config.folder.with_name(f"kept-{number}")
        kept.mkdir()
        disk = Disk(kept)
        with disk.holding(config.folder):
            kill_at(config, moment, Disk(kept))
            disk.fail(config.folder, chance)
        moment = replace(moment, num_steps=moment.num_steps + 2)
    run_to_the_end(config)


def config_of(unbroken: RunConfig, folder: Path, tier: StoreTier) -> RunConfig:
    """The same run in another folder; in DRAM, checkpoints are all that it saves."""
    return replace(
        unbroken,
        folder=folder / "runs",
        streaming=replace(unbroken.streaming, store=tier),
        checkpoint=CheckpointConfig(every=100 if tier is StoreTier.DISK else 2),
    )


@pytest.mark.parametrize(
    "unbroken",
    [case(kind, by_default=name == "undone", id=name) for name, kind in KINDS.items()],
    indirect=True,
)
@pytest.mark.parametrize(
    ("number", "tier"),
    [(3, StoreTier.DISK), case(8, StoreTier.DRAM, by_default=False)],
)
def test_a_run_goes_on_bit_for_bit_after_a_power_failure(
    unbroken: RunConfig, tmp_path: Path, number: int, tier: StoreTier
) -> None:
    config = config_of(unbroken, tmp_path, tier)
    fail_power_and_resume(config, random_moment(number, NUM_STEPS), number)
    assert differing(final_arrays(config), final_arrays(unbroken)) == []


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("number", range(25))
def test_a_run_goes_on_bit_for_bit_after_a_power_failure_at_any_moment(
    unbroken: RunConfig, tmp_path: Path, number: int, tier: StoreTier
) -> None:
    config = config_of(unbroken, tmp_path, tier)
    fail_power_and_resume(config, random_moment(number, NUM_STEPS), number)
    assert differing(final_arrays(config), final_arrays(unbroken)) == []


def write_and_die(folder: Path, disk: Disk) -> None:
    """Flush one file and its name; write to it again, and make and rename others unflushed."""
    disk.keep_flushes()
    descriptor = os.open(folder / "a", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, KEPT)
    os.fsync(descriptor)
    os.fsync(os.open(folder, os.O_RDONLY))
    os.pwrite(descriptor, WRITTEN, 0)
    (folder / "new").write_text("never flushed")
    (folder / "a").rename(folder / "b")
    os._exit(0)


def test_only_what_was_flushed_is_sure_to_survive(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "kept").mkdir()
    disk = Disk(tmp_path / "kept")
    with disk.holding(tmp_path / "folder"):
        forked.start(write_and_die, tmp_path / "folder", disk).join()
        disk.fail(tmp_path / "folder", random.Random(2))
    assert os.listdir(tmp_path / "folder") == ["a"]
    found = (tmp_path / "folder/a").read_bytes()
    pages = {found[start : start + PAGE_BYTES] for start in range(0, len(found), PAGE_BYTES)}
    assert pages == {KEPT[:PAGE_BYTES], WRITTEN[:PAGE_BYTES]}
