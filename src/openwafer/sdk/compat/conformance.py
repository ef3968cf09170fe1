"""Runs a suite of public programs as their own command files say, and reports each."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openwafer.diagnostics import Severity, counted, error
from openwafer.sdk.compat import replayed
from openwafer.sdk.fabric import findings
from openwafer.sdk.host.final_state import difference, read
from openwafer.sdk.host.journal import JOURNAL_VARIABLE
from openwafer.sdk.host.pe_code import ENGINE_VARIABLE, EngineKind
from openwafer.sdk.program.environment import FINAL_STATE_VARIABLE

FORMAT: Final = "openwafer-conformance"
VERSION: Final = 2

_COMMANDS: Final = {"cslc": "openwafer.cli.cslc", "cs_python": "openwafer.cli.cs_python"}
# Some published suites name the host script's interpreter by a placeholder of their test harness.
_PLACEHOLDER: Final = ("%python_sdk_paint", "cs_python run.py")
_CYCLES: Final = re.compile(r'"cycle_count": (\d+)')
_REASON: Final = re.compile(
    r"^(error\b.*|\w*(?:Error|Exception)\b.*|Segmentation fault.*)$", re.MULTILINE
)
_OVERRUN: Final = re.compile(rf"^{Severity.WARNING}\[{findings.OVERRUN_CODE}\]", re.MULTILINE)
_EXIT_TIMEOUT: Final = 124


@dataclass(frozen=True)
class Outcome:
    """What became of one program.

    Attributes:
        name: its folder below the suite's.
        exit_code: of its command file; 124 when it ran out of time.
        cycles: of its last simulation; None when there was none.
        reason: first line of the diagnostic; empty when it passed.
        output: all that it printed.
        overruns: warnings about vector operations that went over the end of a variable.
    """

    name: str
    exit_code: int
    seconds: float
    cycles: int | None
    reason: str
    output: str
    overruns: int = 0

    @property
    def has_passed(self) -> bool:
        """Whether its commands ended with 0."""
        return self.exit_code == 0


@dataclass(frozen=True)
class SuiteOptions:
    """Which programs of a suite run, and how.

    Attributes:
        arch: generation whose command files run.
        name_filter: part of the names of the programs that run; empty runs all.
        jobs: programs at a time.
        timeout_seconds: of one program.
        keep: folder that the programs' folders stay in; None removes them.
        is_compared: each program runs a second time in the reference interpreter, and has passed
            only if both runs leave the same state behind.
        is_replayed: each run is done again from its journal in another process, with the account
            of time and the cycles by line, and in a debugger, and has passed only if it is the same
            run, and its cycles add up.
        script: name of the command files; empty for ``commands_wse2.sh`` or ``commands_wse3.sh``.
    """

    arch: str
    name_filter: str = ""
    jobs: int = 2
    timeout_seconds: float = 300.0
    keep: Path | None = None
    is_compared: bool = False
    is_replayed: bool = False
    script: str = ""


def find_programs(suite: Path, options: SuiteOptions) -> tuple[Path, ...]:
    """Return the command files of a suite. Raises OpenwaferError when there are none."""
    name = options.script or f"commands_{options.arch}.sh"
    found = sorted(suite.rglob(name))
    if not found:
        raise error(
            "suite-empty",
            f"{suite} has no {name} at any depth",
            help="name the command files that it has: --script commands.sh",
        )
    chosen = tuple(
        path for path in found if options.name_filter in str(path.parent.relative_to(suite))
    )
    if not chosen:
        raise error("suite-filter", f"none of {len(found)} names holds {options.name_filter!r}")
    return chosen


def run_suite(
    suite: Path, options: SuiteOptions, tell: Callable[[Outcome], None]
) -> tuple[Outcome, ...]:
    """Run the programs of a suite and return their outcomes, sorted by name.

    Args:
        suite: folder with programs at any depth.
        options: which, and how.
        tell: called with each outcome as soon as it is there.
    """
    files = find_programs(suite, options)
    with _workplace(options.keep) as place:
        copy = place / "suite"
        # Programs reach files beside their own folder, so each works in a copy of the whole suite.
        commands = _write_commands(place / "commands")

        def run(path: Path) -> Outcome:
            name = str(path.parent.relative_to(suite))
            folder = copy / name.replace(os.sep, "__")
            outcome = _run_program(suite, path, folder, commands, options)
            tell(outcome)
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            return tuple(pool.map(run, files))


@contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="openwafer-conform-") as folder:
        yield Path(folder)


def _write_commands(folder: Path) -> Path:
    """Write the two commands, for this interpreter, to a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in _COMMANDS.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        path.chmod(0o755)
    return folder


def _run_program(
    suite: Path, path: Path, folder: Path, commands: Path, options: SuiteOptions
) -> Outcome:
    name = path.parent.relative_to(suite)
    shutil.copytree(_needed(path.parent), folder, dirs_exist_ok=True)
    place = folder / path.parent.relative_to(_needed(path.parent))
    script = place / path.name
    script.write_text(script.read_text().replace(*_PLACEHOLDER))
    start = time.monotonic()
    states = folder.with_name(f"{folder.name}.states")
    environment = _environment(commands, states, options)
    exit_code, output = _ran(("bash", script.name), place, environment, options.timeout_seconds)
    cycles = _cycles(place)
    reason = "" if exit_code == 0 else _reason(exit_code, output)
    if options.is_replayed and exit_code == 0:
        folders = map(str, (states / "journals", states / EngineKind.NATIVE))
        again = (sys.executable, "-m", replayed.__name__, *folders)
        exit_code, told = _ran(again, place, environment, options.timeout_seconds)
        reason, output = _reason(exit_code, told) if exit_code else "", output + told
    if options.is_compared and exit_code == 0:
        kind = EngineKind.INTERPRETER
        environment |= {ENGINE_VARIABLE: kind, FINAL_STATE_VARIABLE: str(states / kind)}
        exit_code, output = _ran(("bash", script.name), place, environment, options.timeout_seconds)
        reason = _reason(exit_code, output) if exit_code else _compare(states)
        exit_code = exit_code or int(reason != "")
    seconds, found = time.monotonic() - start, len(_OVERRUN.findall(output))
    return Outcome(str(name), exit_code, seconds, cycles, reason, output, found)


def _environment(commands: Path, states: Path, options: SuiteOptions) -> dict[str, str]:
    environment = os.environ | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    kind = EngineKind.NATIVE
    if options.is_compared:
        environment[ENGINE_VARIABLE] = kind
    if options.is_compared or options.is_replayed:
        environment[FINAL_STATE_VARIABLE] = str(states / kind)
    if options.is_replayed:
        environment[JOURNAL_VARIABLE] = str(states / "journals")
    return environment


def _compare(states: Path) -> str:
    """The first difference between what the two engines left behind."""
    folders = [states / kind for kind in (EngineKind.NATIVE, EngineKind.INTERPRETER)]
    names = [sorted(path.name for path in folder.glob("*.npz")) for folder in folders]
    if names[0] != names[1] or not names[0]:
        return f"native code and interpreter ran {len(names[0])} and {len(names[1])} simulations"
    for name in names[0]:
        found = difference(*(read(folder / name) for folder in folders))
        if found:
            return f"native code and interpreter: {found}"
    return ""


def _needed(program: Path) -> Path:
    """Folder to copy: the one above when the program refers to files beside its own folder."""
    texts = (
        path.read_text(errors="replace") for path in program.rglob("*") if path.suffix in _SOURCES
    )
    return program.parent if any("../" in text for text in texts) else program


_SOURCES: Final = (".csl", ".py", ".sh")


def _ran(
    command: Sequence[str], place: Path, environment: Mapping[str, str], timeout_seconds: float
) -> tuple[int, str]:
    with subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            # The whole group: the shell's children would go on without it.
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            return _EXIT_TIMEOUT, output
    return process.returncode, output


def _reason(exit_code: int, output: str) -> str:
    if exit_code == _EXIT_TIMEOUT:
        return "out of time"
    found = _REASON.findall(output)
    if found:
        return str(found[0] if found[0].startswith("error") else found[-1])
    lines = output.strip().splitlines()
    return lines[-1] if lines else f"exit code {exit_code}"


def _cycles(place: Path) -> int | None:
    statistics = place / "sim_stats.json"
    found = _CYCLES.search(statistics.read_text()) if statistics.is_file() else None
    return int(found[1]) if found else None


def totals(outcomes: Sequence[Outcome]) -> str:
    """Return the last line of a report."""
    passed = sum(outcome.has_passed for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    num = sum(outcome.overruns for outcome in outcomes)
    found = f", {counted(num, 'warning')} of overruns" if num else ""
    return f"{passed} of {len(outcomes)} passed, {seconds:.1f} s in all{found}"
