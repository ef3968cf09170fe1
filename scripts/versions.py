"""Try the package on the Pythons and torch versions that it promises: `make test-versions`.

For each pair a wheel of the package goes into an empty environment, where the demo trains 20 steps
and the tests run that touch what torch, transformers and numba do not promise to keep. A Python
that this machine lacks is told and counts as no failure; all else that fails is told at the end.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Python, torch, and what stands beside it: the oldest, or the newest that there is.
OLDEST = ("transformers==5.17.*", "numpy==2.0.*")
PAIRS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("3.11", "2.13", ()),
    ("3.12", "2.11", OLDEST),
    ("3.12", "2.12", ()),
    ("3.13", "2.14", ()),
)
TOLD = ("torch", "transformers", "numpy")
STREAM = (
    *("compiled_layers", "contexts_of_micro_batches", "expert_weights", "fake_tensors"),
    *("fused_experts", "fused_kernels", "loops_with_shares", "operators", "optimizers_of_loops"),
    *("remote_experts", "shared_casts", "shares_of_loops", "transforms_inside"),
)
FAST = (
    *("tests/ground", "tests/csl", "tests/sdk/fabric/test_one_unit.py", "tests/planning/laws"),
    *("tests/training/test_torch_private.py", "tests/training/store"),
    "tests/training/stream_cuda/test_device_resident.py",
    *(f"tests/training/stream/test_{name}.py" for name in STREAM),
)
TOOLS = ("pytest>=9.0", "pytest-xdist>=3.6", "hypothesis>=6.120")
DEMO_STEPS = 20
DEMO_SECONDS = 600


@dataclass
class Result:
    """One row of the table."""

    python: str
    versions: list[str]
    demo: str = "not tried"
    tests: str = "not tried"
    seconds: float = 0.0
    is_good: bool = False

    @property
    def row(self) -> str:
        """As a line of a table in Markdown."""
        cells = [self.python, *self.versions, self.demo, self.tests, f"{self.seconds:.0f} s"]
        return f"| {' | '.join(cells)} |"


def interpreter_of(version: str) -> Path | None:
    """A Python of a version: on the path, or one that pyenv has installed."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    found = [
        *sorted(roots.glob(f"{version}.*/bin/python{version}")),
        *([on_path] if on_path else []),
    ]
    for candidate in map(Path, reversed(found)):
        if (
            subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode
            == 0
        ):
            return candidate
    return None


class Environment:
    """A folder with a Python and what is installed beside it."""

    def __init__(self, interpreter: Path, folder: Path) -> None:
        self.python = folder / "bin" / "python"
        self._uv = shutil.which("uv")
        shutil.rmtree(folder, ignore_errors=True)
        make = [self._uv, "venv", "-q", "-p"] if self._uv else None
        _run([*make, interpreter, folder] if make else [interpreter, "-m", "venv", folder])

    def install(self, *wanted: str) -> None:
        """Install packages, all in one go, so that they agree."""
        pip = [self.python, "-m", "pip", "install", "--quiet"]
        uv = [self._uv, "pip", "install", "--quiet", "--python", self.python]
        _run([*(uv if self._uv else pip), *wanted])

    def version(self, package: str) -> str:
        """The installed version of a package."""
        code = f"from importlib.metadata import version; print(version({package!r}))"
        return _run([self.python, "-c", code]).strip()


def _run(command: list[object], timeout: float | None = None, **more: str) -> str:
    """What a command prints; raises `CalledProcessError` with it where the command fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=timeout,
        env={**os.environ, **more},
    )
    return done.stdout


def wheel_into(folder: Path) -> Path:
    """The package as a wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    _run([*command, ROOT])
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_demo(environment: Environment, folder: Path) -> str:
    """Seconds that the demo's first steps take; raises where it fails."""
    started = time.monotonic()
    command = [environment.python, "-m", "openwafer", "demo", "--folder", folder]
    _run([*command, "--set", f"steps={DEMO_STEPS}"], DEMO_SECONDS)
    return f"{time.monotonic() - started:.0f} s"


def try_tests(environment: Environment, workers: int) -> tuple[str, bool]:
    """The numbers in pytest's last line, and whether all was well."""
    command: list[object] = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    parallel = ["-n", workers, "--dist", "worksteal"] if workers > 1 else []
    try:
        output, is_good = _run([*command, *parallel, *FAST]), True
    except subprocess.CalledProcessError as failed:
        output, is_good = failed.output, False
        print(output[-6000:])
    found = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", output.splitlines()[-1])
    return ", ".join(found) or "none", is_good


def try_pair(
    pair: tuple[str, str, tuple[str, ...]], wheel: Path, folder: Path, workers: int
) -> Result:
    """A row of the table."""
    python, torch, beside = pair
    result = Result(python, [torch, "", ""])
    interpreter = interpreter_of(python)
    if interpreter is None:
        result.demo, result.is_good = "no such Python here", True
        return result
    started = time.monotonic()
    try:
        environment = Environment(interpreter, folder / "environment")
        environment.install(str(wheel), f"torch=={torch}.*", *beside)
        result.versions = [environment.version(name) for name in TOLD]
        result.demo = try_demo(environment, folder / "demo")
        environment.install(*TOOLS)
        result.tests, result.is_good = try_tests(environment, workers)
    except subprocess.CalledProcessError as failed:
        print(failed.output[-6000:])
    except subprocess.TimeoutExpired:
        result.demo = f"over {DEMO_SECONDS} s"
    shutil.rmtree(folder / "environment", ignore_errors=True)
    result.seconds = time.monotonic() - started
    return result


def main() -> int:
    """Try the pairs, print the table, and return 1 where one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", help="only pairs with this Python")
    parser.add_argument("--torch", help="only pairs with this torch, as 2.12")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    wheel = wheel_into(options.folder / "wheel")
    results = []
    for pair in PAIRS:
        if options.python in (None, pair[0]) and options.torch in (None, pair[1]):
            print(f"Python {pair[0]}, torch {pair[1]}", flush=True)
            results.append(try_pair(pair, wheel, options.folder, options.workers))
    print(f"\n| Python | {' | '.join(TOLD)} | demo | tests | in all |\n" + "|---" * 7 + "|")
    print("\n".join(result.row for result in results))
    return 0 if results and all(result.is_good for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
