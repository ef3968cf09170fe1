"""What a record of a run costs: nothing is recorded, one PE is, all are.

The program is that of bench_fabric.py, whose routers and cores are busy in nearly every cycle, so a
record has more events a cycle than that of most programs. Times are of the processor, in turns, so
that other work on the machine counts less; the least and the median of the turns are shown.

    python benchmarks/bench_record.py --size 64 --turns 9
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from bench_fabric import element, pairs, run

from openwafer.sdk.fabric import Scope, Simulator, SimulatorOptions
from openwafer.sdk.host import read_record
from openwafer.sdk.host.record import RecordFile
from openwafer.sdk.program.program import Program

ONE_PE = Scope(rectangle=(1, 1, 1, 1))


def measure(program: Program, scope: Scope | None, path: Path) -> tuple[float, int]:
    """Processor seconds of a run, the writing of its record included, and its cycles."""
    options = SimulatorOptions(scope=scope)
    simulator = Simulator(program, run.address, element.address, options)
    simulator.start_command([0, 0, -1])
    begin = time.process_time()
    file = None
    if scope is not None:
        file = RecordFile(path, program, scope)
        simulator.record_to(file.add)
    simulator.run_until_idle()
    if file is not None:
        file.close()
    return time.process_time() - begin, simulator.cycle


def report(size: int, turns: int, folder: Path) -> None:
    """Print a row of the table for each scope."""
    program = pairs(size, size)
    scopes = {"nothing": None, "one PE": ONE_PE, "all PEs": Scope()}
    seconds: dict[str, list[float]] = {name: [] for name in scopes}
    for _ in range(turns):
        for name, scope in scopes.items():
            path = folder / f"{name}.record"
            used, cycles = measure(program, scope, path)
            seconds[name].append(used)
    least = min(seconds["nothing"])
    middle = statistics.median(seconds["nothing"])
    for name, scope in scopes.items():
        own = seconds[name]
        path = folder / f"{name}.record"
        num_bytes = path.stat().st_size if scope else 0
        events = read_record(path).table.num_rows if scope else 0
        print(
            f"| {size} x {size} | {name} | {min(own):.3f} | {min(own) / least:.3f} |"
            f" {statistics.median(own) / middle:.3f} | {events / cycles:.1f} |"
            f" {num_bytes / cycles:.0f} | {num_bytes / max(1, events):.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, nargs="+", default=[64])
    parser.add_argument("--turns", type=int, default=9)
    args = parser.parse_args()
    columns = ("PEs", "recorded", "least s", "factor", "of medians", "events a cycle")
    more = ("bytes a cycle", "bytes an event")
    print(f"| {' | '.join((*columns, *more))} |\n|{'---|' * (len(columns) + len(more))}")
    with tempfile.TemporaryDirectory() as folder:
        for size in args.size:
            report(size, args.turns, Path(folder))


if __name__ == "__main__":
    main()
