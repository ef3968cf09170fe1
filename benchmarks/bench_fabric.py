"""How many PE-cycles a second the fabric simulator does.

PEs of a row work in pairs: each sends vectors to the other one and receives one from it, as two
microthreads, round after round; so all routers and cores are busy in nearly every cycle. The PEs'
code is a few lines of native code, so the figure is the simulator's own. The rate "a processor" is
by processor time of all threads, so that other work on the machine counts less.

    python benchmarks/bench_fabric.py --size 64 256 --threads 1 2
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.program import descriptor as dsd
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Entry, Image, QueueBinding, Symbol, TaskBinding, TaskKind
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import ColorConfig

WEST, EAST, RAMP = 1, 2, 16
LENGTH, ROUNDS, TASK = 100, 20, 9
SENT, RECEIVED = 1000, 2000
MOVE = VECTOR_OPS["mov32"].code
FABIN, FABOUT, MEM1D = (int(k) for k in (dsd.DsdKind.FABIN, dsd.DsdKind.FABOUT, dsd.DsdKind.MEM1D))
STATE = mb.ARGUMENTS + 8
SIGNATURE = "int32(int64, CPointer(int64), CPointer(uint16), int64, int64)"


@numba.njit  # type: ignore[untyped-decorator]
def fill(box: Any, is_send: bool, color: int) -> None:
    """Request a move of LENGTH words to or from the fabric, as microthread 2 or 3."""
    for k in range(mb.REQUEST, mb.MAILBOX_WORDS):
        box[k] = -1 if mb.ACTIVATE <= k <= mb.PRIORITY else 0
    box[mb.REQUEST], box[mb.OPERATION], box[mb.OPTIONS] = 1, MOVE, 1
    box[mb.MICROTHREAD] = 2 if is_send else 3
    if not is_send:
        box[mb.ACTIVATE] = TASK
    fabric = mb.OPERANDS + (0 if is_send else mb.OPERAND_WORDS)
    memory = mb.OPERANDS + (mb.OPERAND_WORDS if is_send else 0)
    box[fabric] = box[memory] = 2
    box[fabric + 1] = (FABOUT if is_send else FABIN) | color << 16 | LENGTH << 32
    box[fabric + 2] = 1 | 2 << 16
    box[memory + 1] = MEM1D | (SENT if is_send else RECEIVED) << 16 | LENGTH << 32
    box[memory + 2] = 2 | 2 << 16


@numba.cfunc(SIGNATURE)  # type: ignore[untyped-decorator]
def run(_image: int, box: Any, _memory: Any, _entry: int, is_resume: int) -> int:
    """A round: send, receive; the end of the receipt starts the next one."""
    own = box[mb.COORDINATES] & 1
    if is_resume == 0:
        box[STATE] = 0
        box[STATE + 1] += 1
        if box[STATE + 1] > ROUNDS:
            return 1
    box[STATE] += 1
    if box[STATE] == 3:
        return 1
    fill(box, box[STATE] == 1, own if box[STATE] == 1 else 1 - own)
    return 0


@numba.cfunc("int64(int64, int64, int64, int64)")  # type: ignore[untyped-decorator]
def element(_operation: int, first: int, _second: int, _third: int) -> int:
    """Moves only."""
    return first


def pairs(size: int, busy_rows: int) -> Program:
    """A program of `size` x `size` PEs; the PEs below `busy_rows` do nothing."""
    images = [
        Image(
            name=f"column{own}",
            code="",
            data=b"",
            stack_base=RECEIVED + 2 * LENGTH,
            code_words=0,
            entries=(Entry("round"),),
            tasks=(TaskBinding(TaskKind.LOCAL, TASK, 0),),
            queues=(QueueBinding(True, 1, 1 - own),),
            symbols=(
                Symbol("sent", SENT, 2 * LENGTH, "u32", (LENGTH,)),
                Symbol("received", RECEIVED, 2 * LENGTH, "u32", (LENGTH,)),
            ),
        )
        for own in (0, 1, 2)
    ]
    west = ((0, ColorConfig(RAMP, EAST)), (1, ColorConfig(EAST, RAMP)))
    east = ((0, ColorConfig(WEST, RAMP)), (1, ColorConfig(RAMP, WEST)))
    columns = np.tile(np.arange(size, dtype=np.int32) % 2, (size, 1))
    kinds = columns.copy()
    kinds[busy_rows:] = 2
    none = np.zeros((size, size, 0), np.int64)
    fabric = (size + 7, size + 2)
    return Program(Arch.WSE2, fabric, (4, 1), tuple(images), kinds, none, (west, east), columns)


def resident_bytes() -> int:
    """Memory that this process takes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@dataclass(frozen=True)
class Measured:
    """A run: `loaded_bytes` and `run_bytes` are memory a PE before the run and after it."""

    cycles: int
    landings: int
    seconds: float
    processor_seconds: float
    loaded_bytes: float
    run_bytes: float


def measure(size: int, busy_rows: int, threads: int = 1) -> Measured:
    """All rounds of the upper rows of a square."""
    program = pairs(size, busy_rows)
    before = resident_bytes()
    options = SimulatorOptions(threads=threads)
    simulator = Simulator(program, run.address, element.address, options)
    loaded = resident_bytes()
    simulator.start_command([0, 0, -1])
    started, own = time.perf_counter(), time.process_time()
    simulator.run_until_idle()
    seconds, own = time.perf_counter() - started, time.process_time() - own
    per_pe = [(bytes_ - before) / size**2 for bytes_ in (loaded, resident_bytes())]
    landings = simulator.statistics().landings
    return Measured(simulator.cycle, landings, seconds, own, per_pe[0], per_pe[1])


def report(name: str, size: int, busy_rows: int, threads: int) -> None:
    """Print a run as a row of the table."""
    got = measure(size, busy_rows, threads)
    done = size * size * got.cycles / 1e6
    print(
        f"| {name} | {size} x {size} | {threads} | {got.seconds:.2f} | {done / got.seconds:.1f} |"
        f" {done / got.processor_seconds:.1f} | {got.landings / got.seconds / 1e6:.1f} |"
        f" {got.loaded_bytes:.0f} | {got.run_bytes:.0f} |"
    )


def main() -> None:
    """Print a table: busy and idle fabrics, one thread and more, memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs="*", default=[16, 64], help="PEs of a side, even")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    given = parser.parse_args()
    start = time.perf_counter()
    measure(2, 2)
    print(f"ready after {time.perf_counter() - start:.2f} s (compiling, or reading the cache)")
    print(
        "| PEs | size | threads | s | M PE-cycles/s | a processor | M landings/s | B a PE | run |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in given.size:
        for threads in given.threads:
            report("all busy", size, size, threads)
    for size in given.size:
        report("two busy rows", size, 2, 1)


if __name__ == "__main__":
    main()
