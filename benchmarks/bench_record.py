"""What a record of a run costs: nothing is recorded, one PE is, all are.

The program is that of bench_fabric.py, whose routers and cores are busy in nearly every cycle, so a
record has more events a cycle than that of most programs. Times are of the processor. Each turn
runs all of them, another one first each time, and each is divided by the run of the same turn
that records nothing; the middle and the quartiles of these factors are shown. So they hold beside
other work, which comes and goes slower than turns; the factor of a second run that records
nothing says how far they do.

    python benchmarks/bench_record.py --size 64 --turns 9
    python benchmarks/bench_record.py --size 16 --turns 100 --recorded "one PE"
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench_fabric import element, pairs, run

from openwafer.sdk.fabric import Scope, Simulator, SimulatorOptions
from openwafer.sdk.host import read_record
from openwafer.sdk.host.record import RecordFile
from openwafer.sdk.program.program import Program

BASE, AGAIN = "nothing", "nothing again"
SCOPES = {"one PE": Scope(rectangle=(1, 1, 1, 1)), "all PEs": Scope()}


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


def report(size: int, turns: int, recorded: Sequence[str], folder: Path) -> None:
    """Print a row of the table for each scope."""
    program = pairs(size, size)
    names = [BASE, AGAIN, *recorded]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            used, cycles = measure(program, SCOPES.get(name), folder / f"{name}.record")
            seconds[name].append(used)
    for name in names:
        pairs_of_turns = zip(seconds[name], seconds[BASE], strict=True)
        factors = [own / base for own, base in pairs_of_turns]
        path = folder / f"{name}.record"
        num_bytes = path.stat().st_size if name in SCOPES else 0
        events = read_record(path).table.num_rows if name in SCOPES else 0
        low, middle, high = np.quantile(factors, (0.25, 0.5, 0.75))
        print(
            f"| {size} x {size} | {name} | {min(seconds[name]):.3f} | {middle:.3f} |"
            f" {low:.3f} to {high:.3f} | {events / cycles:.1f} |"
            f" {num_bytes / cycles:.0f} | {num_bytes / max(1, events):.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, nargs="+", default=[64])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--recorded", nargs="*", default=[*SCOPES], choices=[*SCOPES])
    args = parser.parse_args()
    columns = ("PEs", "recorded", "least s", "factor", "quartiles", "events a cycle")
    more = ("bytes a cycle", "bytes an event")
    print(f"| {' | '.join((*columns, *more))} |\n|{'---|' * (len(columns) + len(more))}")
    with tempfile.TemporaryDirectory() as folder:
        for size in args.size:
            report(size, args.turns, args.recorded, Path(folder))


if __name__ == "__main__":
    main()
