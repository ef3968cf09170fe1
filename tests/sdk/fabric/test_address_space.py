"""Machines under a limit on address space, as clusters and course servers set it."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import address_space
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import allocate
from tests.sdk.door.small_program import small_program
from tests.sdk.fabric.python_code import PythonCode, engine_of, image, program

GIB = 1 << 30
RUN = """
import resource, sys
import openwafer.sdk as wafer
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
options = wafer.RuntimeOptions(log_folder=None, threads=int(sys.argv[2]))
with wafer.load(sys.argv[1]).run(options) as run:
    run["single"] = 2.0
    run.launch("add", 1.0, 3)
    print(run["single"].ravel().tolist())
"""


@pytest.fixture
def limit() -> Iterator[int]:
    """Two gibibytes more than the process has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2 * GIB, before[1]))
    yield 2 * GIB
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_is_compiled_and_runs_in_two_gibibytes_more(threads: int, tmp_path: Path) -> None:
    options = wafer.RuntimeOptions(log_folder=None, threads=threads)
    with small_program(tmp_path, 2, 1).run(options) as run:
        run["single"] = 2.0
        run.launch("add", 1.0, 3)
        assert run["single"].ravel().tolist() == [7.0] * 6


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_runs_in_two_gibibytes(tmp_path: Path, threads: int) -> None:
    small_program(tmp_path, 2, 1).save(tmp_path / "out")
    line = [sys.executable, "-c", RUN, str(tmp_path / "out"), str(threads)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{[7.0] * 6}\n", 0), done.stderr


def test_a_machine_that_needs_more_says_how_much_and_what_is_left(limit: int) -> None:
    with pytest.raises(OpenwaferError) as refused:
        allocate(750, 994, 1, 1)
    text = str(refused.value)
    assert "MiB of address space for 750 x 994 PEs: Cannot allocate memory" in text
    assert f"and {limit >> 20:,} MiB are left" in text
    assert "ulimit -v" in text


def test_a_limited_machine_gives_its_address_space_back(limit: int) -> None:
    for _ in range(5):
        allocate(2, 1, 2, 1)
    left = address_space.free_bytes()
    assert left is not None
    assert limit - left < GIB // 64


def test_more_words_than_there_is_room_for_are_refused_and_the_machine_goes_on() -> None:
    simulator = PythonCode([]).simulator(program([[0]], [image("idle")]))
    engine_of(simulator).state[w.G_SOURCE_ROOM] = 3
    simulator.inject(4, 0, 0, np.arange(4, dtype=np.uint32))
    with pytest.raises(OpenwaferError, match=r"4 words wait .* and there is room for 3"):
        simulator.run_until_idle()
