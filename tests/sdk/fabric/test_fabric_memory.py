"""Memory that a PE of the simulator takes."""

from pathlib import Path

import numpy as np

from openwafer.sdk.fabric import Simulator
from tests.sdk.fabric.python_code import PythonCode, image, program

SIDE = 128


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def idle_square() -> tuple[Simulator, PythonCode]:
    grid = np.zeros((SIDE, SIDE), np.int32).tolist()
    code = PythonCode([])
    return code.simulator(program(grid, [image("idle", data=bytes(4000))])), code


def test_an_idle_pe_takes_little_more_than_a_kilobyte() -> None:
    before = resident_bytes()
    simulator, _code = idle_square()
    simulator.run_until_idle()
    assert (resident_bytes() - before) / SIDE**2 < 1280
