"""A process that ends anywhere in a save leaves the old checkpoint or the new one."""

import re
from pathlib import Path

from tests.own_process import text_of


def test_a_save_stopped_at_any_system_call_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    told = text_of("tests.faults.stopped_checkpoint", tmp_path)
    found = re.fullmatch(r"earlier: (\d+) calls\nnothing: (\d+) calls\n", told)
    assert found, told
    assert min(int(found[1]), int(found[2])) > 5
