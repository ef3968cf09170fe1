"""What a GPU shows: the CUDA tests, bits, memory by depth, share of resident speed, generation.

For a machine with one GPU and no network, in at most six minutes. It needs no install: the
interpreter has torch, from 2.11 on, and packages that it lacks come from a folder of wheels. Beside
torch and transformers these are usually greenlet and msgspec, 1 MB. A part that fails or
takes too long leaves its line in the table, and the others go on.

    python benchmarks/gpu/measure.py [--wheels FOLDER] [--out FOLDER] [--device cpu]

Writes gpu.json, gpu.md and gpu.png. Ends with code 1 where a part failed or missed its target, and
with 2 where there is no GPU. With `--device cpu` the same parts run on the CPU, at small sizes,
without targets for speed.
"""

import argparse
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Seconds that each part may take on a GPU: 350 in all, with ten of the six minutes for the rest.
LIMITS = {"tests": 75, "bits": 55, "depth": 45, "throughput": 125, "generation": 50}
# What openwafer imports and an image with torch may lack; pytest and hypothesis are for the tests.
PACKAGES = (
    *("greenlet", "huggingface_hub", "llvmlite", "matplotlib", "msgspec", "numba", "numpy"),
    *("psutil", "pyarrow", "yaml", "rich", "safetensors", "scipy", "tokenizers", "torch"),
    *("transformers", "typer", "xxhash", "pytest", "hypothesis"),
)


@dataclass(frozen=True)
class Measured:
    """A part that has ended.

    Attributes:
        name: of the part.
        seconds: it took.
        rows: of the table, each a figure with its target and whether it was reached.
        figures: for the picture and for other programs.
        failure: the end of what it printed, where it failed.
    """

    name: str
    seconds: float
    rows: tuple[Mapping[str, Any], ...] = ()
    figures: Mapping[str, Any] | None = None
    failure: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether it ended, and every target was reached."""
        return self.failure is None and all(row["is_reached"] is not False for row in self.rows)


def environment_with(wheels: Path | None, scratch: Path, device: str) -> dict[str, str]:
    """Where the parts find openwafer, its tests and packages that only the wheels have."""
    paths = [ROOT / "src", ROOT, HERE, HERE.parent / "compare"]
    if wheels is not None:
        files = sorted(map(str, wheels.glob("*.whl")))
        if not files:
            sys.exit(f"{wheels} holds no wheels: name the folder that has them, or leave it out")
        options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--target")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, scratch, *files], check=True
        )
        sys.path.insert(0, str(scratch))
        paths.append(scratch)
    return {
        **os.environ,
        **({"OMP_NUM_THREADS": "1"} if device == "cpu" else {}),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def require_packages() -> None:
    """End with the names of packages that are missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"this Python lacks {', '.join(missing)}: download their wheels where there is a "
            "network (pip download --only-binary=:all: --no-deps), and name the folder by --wheels"
        )


def run_part(name: str, device: str, environment: Mapping[str, str], limit: float) -> Measured:
    """Run a part in a process of its own, for so many seconds at most."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found, said = folder / "found.json", folder / "said.txt"
        command = [sys.executable, HERE / "parts.py", name, device, found]
        with said.open("w") as stream:
            process = subprocess.Popen(
                command, env=environment, cwd=folder, start_new_session=True,
                stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip
            is_whole = ends_well(process, limit, stream)
        told = json.loads(found.read_text()) if found.exists() else {"rows": [], "figures": None}
        failure = None if is_whole else said.read_text(errors="replace")[-4000:]
    seconds = time.monotonic() - start
    return Measured(name, seconds, tuple(told["rows"]), told["figures"], failure)


def ends_well(process: "subprocess.Popen[bytes]", limit: float, stream: TextIO) -> bool:
    """Wait for the leader of a session; what it has started ends with it, for the next part's sake.

    Args:
        process: the leader.
        limit: seconds, after which it is stopped.
        stream: where it is told if it was.
    """
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        stream.write(f"\nstopped after {limit:.0f} s\n")
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def table(parts: Sequence[Measured]) -> str:
    """All figures, and what failed."""
    lines = ["| part | figure | value | target | |", "| --- | --- | --- | --- | --- |"]
    for part in parts:
        for row in part.rows:
            verdict = {True: "reached", False: "missed", None: ""}[row["is_reached"]]
            line = (part.name, row["what"], row["value"], row["target"] or "", verdict)
            lines.append(f"| {' | '.join(line)} |")
        if part.failure is not None:
            lines.append(f"| {part.name} | **failed** | {why(part.failure)} | | |")
    return "\n".join(lines) + "\n"


def write(folder: Path, title: str, parts: Sequence[Measured]) -> str:
    """Write what the parts up to now have found; returns the table."""
    write_text = importlib.import_module("openwafer.atomic_file").write_text
    record = {"version": 1, "device": title, "parts": [vars(part) for part in parts]}
    text = f"{title}\n\n{table(parts)}"
    write_text(folder / "gpu.json", json.dumps(record, indent=1) + "\n")
    write_text(folder / "gpu.md", text)
    return text


def why(failure: str) -> str:
    """The line of a traceback that names the error, or the last line."""
    lines = [line for line in failure.splitlines() if line.strip()] or ["no word"]
    return next(
        (line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)),
        lines[-1],
    )


def describe(device: str) -> str:
    """The device, torch and Python, in words."""
    import torch  # noqa: PLC0415 - only where it is known to be there

    card = "the CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{card}, torch {torch.__version__}, Python {python}, {os.cpu_count()} processors"


def chosen_device(asked: str) -> str:
    """The device, or the end with code 2 where there is none."""
    import torch  # noqa: PLC0415 - see above

    if asked == "cuda" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} sees no CUDA device here: nothing was measured. "
            "--device cpu runs the same parts at small sizes."
        )
        sys.exit(2)
    return asked


def main() -> None:
    """Run all parts, write what they found, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that this Python lacks")
    parser.add_argument("--only", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu")
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    with tempfile.TemporaryDirectory() as scratch:
        environment = environment_with(chosen.wheels, Path(scratch), chosen.device)
        require_packages()
        device = chosen_device(chosen.device)
        title = describe(device)
        print(title, flush=True)
        chosen.out.mkdir(parents=True, exist_ok=True)
        parts: list[Measured] = []
        for name in chosen.only:
            # A CPU that others use, too, has all the time it needs.
            limit = LIMITS[name] * (20 if device == "cpu" else 1)
            parts.append(run_part(name, device, environment, limit))
            if parts[-1].failure is not None:
                print(parts[-1].failure)
            print(f"{name}: {parts[-1].seconds:.0f} s", flush=True)
            text = write(chosen.out, title, parts)
        draw = [sys.executable, HERE / "draw.py", chosen.out / "gpu.json", chosen.out / "gpu.png"]
        is_drawn = subprocess.run(draw, check=False, env=environment).returncode == 0
    print("\n" + text)
    sys.exit(0 if is_drawn and all(part.is_good for part in parts) else 1)


if __name__ == "__main__":
    main()
