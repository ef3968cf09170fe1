"""What writing from disk took is told beside what the disk gives."""

import re
from pathlib import Path

from openwafer.cli.written import tell_reading
from openwafer.training.session.opened_model import GeneratedTexts

MIB = 1 << 20


def written(seconds: tuple[float, ...], read_bytes: tuple[int, ...]) -> GeneratedTexts:
    return GeneratedTexts(2, ("a",), seconds, read_bytes, 3 * MIB, 40 * MIB)


def test_the_rate_is_that_of_passes_behind_the_first(tmp_path: Path) -> None:
    told = tell_reading(written((9.0, 0.5, 0.5), (40 * MIB, 8 * MIB, 8 * MIB)), tmp_path)
    assert told is not None
    rate, room = told.splitlines()
    assert re.fullmatch(
        r"a pass took 500 ms and read 8.00 MiB from disk: 16.0 MiB/s, (?:\d+\.\d\d of the .*/s "
        r"that it gives alone|and the disk's own rate could not be measured)",
        rate,
    )
    assert room.startswith("of 40.0 MiB of weights the device held at most 3.00 MiB, with all")


def test_a_single_pass_tells_of_itself(tmp_path: Path) -> None:
    assert "took 2.00 s and read 8.00 MiB" in str(
        tell_reading(written((2.0,), (8 * MIB,)), tmp_path)
    )


def test_nothing_is_told_where_nothing_was_read(tmp_path: Path) -> None:
    assert tell_reading(written((1.0, 1.0), (8 * MIB, 0)), tmp_path) is None
