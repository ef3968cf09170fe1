"""Seconds of one public program from its own command file, the first time and the next times.

Compiler, interpreter and simulator run as the file says, in a copy of the suite, with caches of
their own: empty ones for the first run, those that it leaves for the others.

    python benchmarks/bench_tutorial.py csl-examples/tutorials/gemv-05-multiple-pes --arch wse3
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_SECONDS = 20.0
WARM_LIMIT_SECONDS = 5.0


def write_commands(folder: Path) -> None:
    """``cslc`` and ``cs_python`` of this installation."""
    folder.mkdir()
    for name in ("cslc", "cs_python"):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m openwafer.cli.{name} "$@"\n')
        path.chmod(0o755)


def seconds_of(command_file: Path, place: Path) -> float:
    """Seconds of a run by the clock; the program must end well."""
    environment = os.environ | {
        "PATH": f"{place / 'commands'}{os.pathsep}{os.environ['PATH']}",
        "OPENWAFER_CACHE": str(place / "cache"),
        "NUMBA_CACHE_DIR": str(place / "numba"),
    }
    begin = time.perf_counter()
    run = ["bash", str(command_file)]
    subprocess.run(run, cwd=command_file.parent, env=environment, check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    """Print the seconds of each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("program", type=Path, nargs="?", help="folder of one program of a suite")
    parser.add_argument("--arch", default="wse3", choices=["wse2", "wse3"])
    parser.add_argument("--repeats", type=int, default=3, help="runs with filled caches")
    arguments = parser.parse_args()
    if arguments.program is None:
        print("no program: give the folder of one of the public programs")
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_commands(place / "commands")
        # Programs reach for files beside their own folder.
        shutil.copytree(arguments.program.parent, place / "suite")
        command_file = place / "suite" / arguments.program.name / f"commands_{arguments.arch}.sh"
        first = seconds_of(command_file, place)
        print(f"first run {first:6.2f} s, at most {LIMIT_SECONDS} s wanted", flush=True)
        for _ in range(arguments.repeats):
            seconds = seconds_of(command_file, place)
            print(f"next run  {seconds:6.2f} s, at most {WARM_LIMIT_SECONDS} s wanted", flush=True)


if __name__ == "__main__":
    main()
