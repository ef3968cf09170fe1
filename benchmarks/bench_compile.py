"""How long the programs of a suite take to compile, with an empty cache and with a filled one.

Each program's own command file runs in a copy of the suite, with a ``cslc`` first on the path that
takes the time of the real one, and a ``cs_python`` that does nothing. Seconds are those of the
clock, of a new process, interpreter and imports included.

    python benchmarks/bench_compile.py csl-examples --arch wse2 --filter stencil
"""

import argparse
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_SECONDS = 2.0
WARM_LIMIT_SECONDS = 0.3


@dataclass(frozen=True)
class Timing:
    """Seconds of all compilations of one program."""

    name: str
    cold: float
    warm: float


def command_files(suite: Path, arch: str, name_filter: str) -> Iterator[Path]:
    """The command files that call the compiler themselves."""
    for path in sorted(suite.rglob(f"commands_{arch}.sh")):
        if name_filter in str(path.parent) and "cslc " in path.read_text(encoding="utf-8"):
            yield path


def write_commands(folder: Path, log: Path) -> None:
    """A ``cslc`` that writes down its seconds, and a ``cs_python`` that runs nothing."""
    folder.mkdir()
    compiler = (
        "#!/bin/bash\n"
        "begin=$EPOCHREALTIME\n"
        f'"{sys.executable}" -m openwafer.cli.cslc "$@" >/dev/null || exit 1\n'
        f'echo "$begin $EPOCHREALTIME" >>"{log}"\n'
    )
    for name, text in (("cslc", compiler), ("cs_python", "#!/bin/sh\n")):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def seconds_of(command_file: Path, commands: Path, log: Path, cache: Path) -> float:
    """Seconds that the compilations of a command file take."""
    log.write_text("", encoding="utf-8")
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OPENWAFER_CACHE": str(cache)}
    run = ["bash", str(command_file)]
    subprocess.run(run, cwd=command_file.parent, env=environment, check=True, capture_output=True)
    pairs = (line.split() for line in log.read_text(encoding="utf-8").splitlines())
    return sum(float(end) - float(begin) for begin, end in pairs)


def measure(arguments: argparse.Namespace) -> Iterator[Timing]:
    """Timings of the chosen programs."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        suite = place / "suite"
        shutil.copytree(arguments.suite, suite, ignore=shutil.ignore_patterns(".git"))
        commands, log = place / "commands", place / "log"
        write_commands(commands, log)
        for number, path in enumerate(command_files(suite, arguments.arch, arguments.filter)):
            cache = place / f"cache{number}"
            cold, warm = (seconds_of(path, commands, log, cache) for _ in range(2))
            yield Timing(str(path.parent.relative_to(suite)), cold, warm)
            shutil.rmtree(cache, ignore_errors=True)


def main() -> None:
    """Print a table, slowest program first when it is done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", type=Path, nargs="?", help="folder of programs at any depth")
    parser.add_argument("--arch", default="wse3", choices=["wse2", "wse3"])
    parser.add_argument("--filter", default="", help="part of the names to take")
    arguments = parser.parse_args()
    if arguments.suite is None:
        print("no suite: give the folder of a clone of the public programs")
        return
    timings = []
    for timing in measure(arguments):
        timings.append(timing)
        print(f"{timing.cold:7.2f} {timing.warm:6.2f}  {timing.name}", flush=True)
    late = sum(timing.cold > LIMIT_SECONDS for timing in timings)
    late_warm = sum(timing.warm > WARM_LIMIT_SECONDS for timing in timings)
    print(
        f"{len(timings)} programs: {late} over {LIMIT_SECONDS} s with an empty cache, "
        f"{late_warm} over {WARM_LIMIT_SECONDS} s with a filled one"
    )


if __name__ == "__main__":
    main()
