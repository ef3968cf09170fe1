"""Plants faults in copies of the tree, and runs the default tests on each until one fails."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.planted.fault import PRODUCT, Fault

NOT_COPIED: Final = shutil.ignore_patterns(
    *(".venv", ".git", "runs", "build", "dist", "_build"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache", ".hypothesis"),
)
FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
STARTED: Final = re.compile(
    r"^(tests/\S+\.py::.+?) *(?:(?:PASSED|SKIPPED|FAILED|ERROR|Timeout \().*)?$", re.MULTILINE
)
PASSED, NONE_COLLECTED = 0, 5
"""How pytest ends where no test fails."""


@dataclass(frozen=True)
class Search:
    """What the tests have found of a fault.

    Attributes:
        found_by: the test that fails with the fault, and passes without; empty where none does.
        seconds: that the search took.
        is_cut: it ended because of its limit.
        unsure: tests that fail without the fault, too, and were left out.
    """

    found_by: str
    seconds: float
    is_cut: bool = False
    unsure: tuple[str, ...] = ()

    def __str__(self) -> str:
        left_out = f", without {', '.join(self.unsure)}" if self.unsure else ""
        verdict = self.found_by or ("not found within the limit" if self.is_cut else "NOT FOUND")
        return f"{verdict} ({self.seconds:.0f} s{left_out})"


@dataclass(frozen=True)
class _Tests:
    """How tests have ended: with which, if one has failed, and whether for the limit."""

    failed: str = ""
    is_cut: bool = False


def search(fault: Fault, tree: Path, limit_seconds: float) -> Search:
    """Plant a fault in a copy of a tree, and look for it: where it is likely, then all over.

    Raises:
        MisfitError: the fault does not fit the tree.
    """
    start = time.monotonic()
    with TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder, "tree")
        shutil.copytree(tree, copy, symlinks=True, ignore=NOT_COPIED)
        source = copy / PRODUCT / fault.path
        sound = source.read_text(encoding="utf-8")
        faulty, unsure = fault.planted(sound), list[str]()
        source.write_text(faulty, encoding="utf-8")
        likely = _places(copy, fault.likely)
        folders = fault.reached(one.name for one in copy.glob("tests/*") if one.is_dir())
        places = [*([place] for place in likely), _places(copy, folders)]
        rounds = [
            [*wanted, *(f"--ignore={place}" for place in likely[:number])]
            for number, wanted in enumerate(places)
        ]
        while rounds:
            left = limit_seconds - (time.monotonic() - start)
            ended = _run(copy, [*rounds[0], *map(_without, unsure)], left)
            seconds = time.monotonic() - start
            if ended.is_cut:
                return Search("", seconds, is_cut=True, unsure=(*unsure,))
            if not ended.failed:
                del rounds[0]
                continue
            source.write_text(sound, encoding="utf-8")
            if not _run(copy, [ended.failed], limit_seconds).failed:
                return Search(ended.failed, seconds, unsure=(*unsure,))
            unsure.append(ended.failed)
            source.write_text(faulty, encoding="utf-8")
    return Search("", time.monotonic() - start, unsure=(*unsure,))


def _places(tree: Path, names: Sequence[str]) -> list[str]:
    """Those of the folders and files of tests that a tree has."""
    return [f"tests/{name}" for name in names if (tree / "tests" / name).exists()]


def _without(test: str) -> str:
    """The option that leaves out a test, or a file that cannot be collected."""
    return f"--deselect={test}" if "::" in test else f"--ignore={test}"


def _run(tree: Path, arguments: Sequence[str], limit_seconds: float) -> _Tests:
    """Run the default tests up to the first that fails."""
    options = ["-x", "-v", "--tb=line", "-p", "no:cacheprovider", f"--basetemp={tree.parent}/tests"]
    # The first test on a changed simulator compiles it, which is no hang on a busy machine.
    options += ["-o", "faulthandler_timeout=300"]
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as tests:
        try:
            text, _ = tests.communicate(timeout=max(limit_seconds, 1.0))
        except subprocess.TimeoutExpired:
            return _Tests(is_cut=True)
        finally:
            # With all that its tests have started.
            with suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)
    if tests.returncode in (PASSED, NONE_COLLECTED):
        return _Tests()
    failed = failed_test(text)
    if not failed:
        raise RuntimeError(f"pytest ends with {tests.returncode}: {text[-2000:]}")
    return _Tests(failed=failed)


def failed_test(output: str) -> str:
    """The test that has failed by what pytest prints; empty where none has."""
    # A test that hangs, or after which pytest itself fails, is the last that it has begun.
    failed = FAILURE.findall(output) or STARTED.findall(output)
    return failed[-1] if failed else ""
