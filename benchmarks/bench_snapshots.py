"""What snapshots of a busy fabric take, and what a journal costs a host script.

python benchmarks/bench_snapshots.py --size 16 64
"""

import argparse
import tempfile
import time
from pathlib import Path

from bench_fabric import element, pairs
from bench_fabric import run as code

import openwafer.sdk as wafer
from openwafer.sdk.fabric import Simulator

CYCLES = 1000
"""Into the run, when all routers and cores are busy."""
OPERATIONS = 500
LAYOUT = Path(__file__).parents[1] / "examples" / "wafer" / "pipeline" / "layout.csl"


def snapshots(size: int) -> str:
    """A row of the table: a fabric of `size` x `size` PEs."""
    simulator = Simulator(pairs(size, size), code.address, element.address)
    simulator.start_command([0, 0, -1])
    simulator.run_cycles(CYCLES)
    begin = time.process_time()
    moment = simulator.snapshot()
    taken, begin = time.process_time() - begin, time.process_time()
    simulator.restore(moment)
    restored = time.process_time() - begin
    per_pe = moment.machine.num_bytes / size**2
    return f"| {size} x {size} | {per_pe:.0f} | {1e3 * taken:.1f} | {1e3 * restored:.1f} |"


def operations(program: wafer.Compiled, journal: Path | None) -> float:
    """Microseconds of processor time of an assignment or a read of a word on each PE."""
    run = program.run(wafer.RuntimeOptions(log_folder=None, journal=journal))
    begin = time.process_time()
    for number in range(OPERATIONS):
        run["term"] = number
        run["term"]
    run.close()
    return 1e6 * (time.process_time() - begin) / (2 * OPERATIONS)


def main() -> None:
    """Print two tables; seconds are of processor time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs="*", default=[16, 64], help="PEs of a side, even")
    given = parser.parse_args()
    print("| PEs | B a PE | taken, ms | restored, ms |\n| --- | --- | --- | --- |")
    for size in given.size:
        print(snapshots(size))
    print("| us an operation without a journal | with one |\n| --- | --- |")
    program = wafer.compile(LAYOUT, params={"width": 6})
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(3):
            without, kept = operations(program, None), operations(program, Path(folder, f"{turn}"))
            print(f"| {without:.0f} | {kept:.0f} |")


if __name__ == "__main__":
    main()
