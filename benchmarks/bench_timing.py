"""The simulated machine's time beside published figures, of small programs and of whole ones.

    python benchmarks/bench_timing.py --suite PATH/csl-examples --write docs/design/timing-table.inc

The small programs measure themselves by the machine's own clock. With ``--suite``, a clone of
Cerebras/csl-examples, whole programs run as their command files say, with the installed `cslc` and
`cs_python`. ``--write`` puts the rows into a Markdown file.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.timing.rows import Row, chain_reduction, fabric_rows, one_pe_rows
from openwafer.atomic_file import write_text
from openwafer.sdk.arch.generation import Arch

_OWN_CLOCK: Final = re.compile(r"(?:cycles_send = |Max cycles.*: +)(\d+)")
_PROGRAMS: Final = (
    ("single-tile-matvec", "program", 780),
    ("7pt-stencil-spmv", "scalar", 2129),
    ("power-method", "scalar", 4877),
    ("residual", "scalar", 674),
    ("game-of-life", "scalar", 7838),
    ("gemv-collectives_2d", "scalar", 3999),
)
"""Programs with published cycles on WSE-3; ``program`` is bound by vector operations."""


def program_rows(suite: Path) -> Iterator[Row]:
    """Whole programs: by their own clock where they have one, else the cycles of the whole run."""
    with TemporaryDirectory() as folder:
        copied = Path(folder) / "suite"
        shutil.copytree(suite, copied)
        for name, kind, published in _PROGRAMS:
            home = copied / "benchmarks" / name
            command = ["bash", "commands_wse3.sh"]
            done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True)
            found = _OWN_CLOCK.search(done.stdout)
            whole = json.loads((home / "sim_stats.json").read_text(encoding="utf-8"))
            ours = float(found[1]) if found else float(whole["cycle_count"])
            label = f"{name}, {'own clock' if found else 'whole run'}"
            yield Row(label, Arch.WSE3, kind, ours, published)


def table(rows: Iterable[Row]) -> str:
    """Rows in Markdown."""
    lines = ["| row | generation | bound by | ours | published | ratio | verdict |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        numbers = f"{row.ours:,.1f} | {row.published:,.1f} | {row.ratio:.2f}"
        lines.append(f"| {row.name} | {row.arch} | {row.kind} | {numbers} | {row.verdict} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", type=Path, help="a clone of Cerebras/csl-examples")
    parser.add_argument("--chain", type=int, default=512, help="PEs of the chain reduction")
    parser.add_argument("--write", type=Path, help="Markdown file that takes the table")
    arguments = parser.parse_args()
    rows = [row for arch in Arch for row in (*one_pe_rows(arch), *fabric_rows(arch))]
    rows.append(chain_reduction(arguments.chain, 8 * arguments.chain))
    if arguments.suite:
        rows += program_rows(arguments.suite)
    text = table(rows)
    print(text, end="")
    if arguments.write:
        write_text(arguments.write, text)


if __name__ == "__main__":
    main()
