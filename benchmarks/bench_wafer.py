"""A whole wafer of PEs that play the game of life: compile, load, run, and check.

One cell a PE, on a rectangle as large as the usable wafer unless told otherwise. The program is
``benchmarks/wafer``, a stencil; the final state is compared with numpy's. With ``--profile`` the
run's time is booked and its code counts, and its profile is taken and written.

    python benchmarks/bench_wafer.py --width 750 --height 994 --generations 100 --picture life.pbm
    python benchmarks/bench_wafer.py --width 750 --height 994 --generations 4 --profile life.html
"""

import argparse
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.compiler.artifacts import compilation_of
from openwafer.sdk.compiler.pipeline import compile_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.host.line_cycles import BookedRun
from openwafer.sdk.profile import Grouping, profile_of, write_profile

PROGRAM = Path(__file__).parent / "wafer" / "layout.csl"
ALIVE_SHARE = 0.3


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print the seconds of a stage, by the clock and of the processor, and the memory so far."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name:8} {clock:8.2f} s  processor {processor:8.2f} s  peak {peak:6.2f} GiB", flush=True
    )


def next_generation(cells: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The rule of the game, nothing living beyond the edges."""
    padded = np.pad(cells, 1)
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    neighbours = rows[:-2] + rows[1:-1] + rows[2:] - cells
    lives = (neighbours == 3) | ((neighbours == 2) & (cells == 1))
    return np.asarray(lives, np.uint32)


def write_picture(path: Path, cells: NDArray[np.uint32]) -> None:
    """A portable bitmap, one pixel a cell."""
    height, width = cells.shape
    path.write_bytes(f"P4 {width} {height}\n".encode() + np.packbits(cells, axis=1).tobytes())


def play(arguments: argparse.Namespace, folder: Path) -> tuple[NDArray[np.uint32], ...]:
    """The cells before and after."""
    width, height = arguments.width, arguments.height
    rng = np.random.default_rng(7)
    before = (rng.random((height, width)) < ALIVE_SHARE).astype(np.uint32)
    params = (("width", str(width)), ("height", str(height)))
    options = CompileOptions(arch=Arch(arguments.arch), params=params, is_memcpy=True)
    with timed("compile"):
        program = compile_program(PROGRAM, options)
    print(f"         {len(program.images)} images, {len(program.routes)} sets of routes")
    with timed("write"):
        compilation_of(program).write(folder)
    del program
    counts = bool(arguments.profile)
    with timed("load"):
        runtime = Runtime(
            folder, RuntimeOptions(log_folder=None, has_account=counts, has_line_cycles=counts)
        )
        runtime.load()
        runtime.run()
    region = Region(0, 0, width, height, 1)
    cell = runtime.get_id("cell")
    with timed("copy in"):
        runtime.copy_to_device(cell, before[:, :, np.newaxis], region)
    begin = runtime.cycle
    with timed("run"):
        runtime.launch("live", arguments.generations)
        received: list[NDArray[np.uint32]] = []
        runtime.copy_from_device(received.append, cell, region)
    with timed("stop"):
        runtime.stop()
    print(f"         {runtime.cycle - begin} cycles")
    if arguments.profile:
        show_profile(runtime.booked(), Grouping(arguments.by), arguments.profile)
    return before, received[0][:, :, 0]


def show_profile(run: BookedRun, by: Grouping, paths: Sequence[Path]) -> None:
    """Take the profile of a run, and write it to files."""
    with timed("profile"):
        profile = profile_of(run, by=by)
    for path in paths:
        with timed(path.suffix[1:]):
            write_profile(profile, path)
        print(f"         {path.stat().st_size:,} bytes")


def main() -> None:
    """Run, compare, and draw where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=64, help="columns; the wafer has 750")
    parser.add_argument("--height", type=int, default=64, help="rows; the wafer has 994")
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--arch", default="wse3", choices=[str(arch) for arch in Arch])
    parser.add_argument("--picture", type=Path, help="where to draw the last generation")
    parser.add_argument("--profile", type=Path, nargs="+", help="files for the run's profile")
    parser.add_argument("--by", default="file", choices=[str(by) for by in Grouping])
    arguments = parser.parse_args()
    print(f"{arguments.width} x {arguments.height} PEs, {arguments.generations} generations")
    with TemporaryDirectory() as folder:
        cells, found = play(arguments, Path(folder))
    for _ in range(arguments.generations):
        cells = next_generation(cells)
    if not np.array_equal(cells, found):
        raise SystemExit(f"{(cells != found).sum()} cells are wrong")
    print(f"all cells are right, {cells.sum()} of them alive")
    if arguments.picture:
        write_picture(arguments.picture, found)


if __name__ == "__main__":
    main()
