"""The simulated machine's time beside published figures, of small programs and of whole ones.

    python benchmarks/bench_timing.py --suite PATH/csl-examples --write docs/design/timing-table.inc

The small programs measure themselves by the machine's own clock. With ``--suite``, a clone of
Cerebras/csl-examples, whole programs run as their command files say, with the installed `cslc` and
`cs_python`; with ``--stencils``, ``--products``, ``--rings``, ``--tiles`` and ``--halves`` those of
five public repositories whose authors published the cycles of their runs. ``--write`` puts the rows
into a Markdown file, and the parameters of time into another beside it.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.timing.public import (
    half_rows,
    product_rows,
    ring_rows,
    stencil_rows,
    tile_rows,
)
from benchmarks.timing.rows import Row, chain_reduction, fabric_rows, one_pe_rows
from openwafer.atomic_file import write_text
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.timing import ORIGINS, WSE2_TIMING, WSE3_TIMING

_OWN_CLOCK: Final = re.compile(r"(?:cycles_send = |Max cycles.*: +)(\d+)")


@dataclass(frozen=True)
class Program:
    """A program of the suite with its published cycles on WSE-3.

    Attributes:
        kind: ``program`` is held to 10%; of ``open`` it is not known what was counted.
        edits: what its command file says instead, by what it says.
    """

    name: str
    folder: str
    kind: str
    published: int
    edits: tuple[tuple[str, str], ...] = ()


_DEEP: Final = (("MAX_ZDIM:5", "MAX_ZDIM:60"), ("-k=5", "-k=60"), ("--zDim=5", "--zDim=60"))
_ON_DEVICE: Final = (
    *(("layout.csl", "layout_power.csl"), ("./run.py", "./device_run.py")),
    ("--max-ite=1", "--max-ite=10"),
)
_SPMV: Final = "7pt-stencil-spmv"
_SPMV_DEEP: Final = f"{_SPMV}, 60 layers"
_PROGRAMS: Final = (
    Program("single-tile-matvec", "single-tile-matvec", "program", 780),
    Program(_SPMV, _SPMV, "program", 2129),
    Program(_SPMV_DEEP, _SPMV, "program", 17134, _DEEP),
    Program(f"{_SPMV}, one block", _SPMV, "program", 1076, (("BLOCK_SIZE:2", "BLOCK_SIZE:5"),)),
    Program("power-method", "power-method", "program", 4877),
    Program("power-method on the device, 10 steps", "power-method", "program", 43436, _ON_DEVICE),
    Program("residual", "residual", "open", 674),
    Program("game-of-life", "game-of-life", "open", 7838),
    Program("gemv-collectives_2d", "gemv-collectives_2d", "open", 3999),
    Program(
        *("gemv-collectives_2d, 2 x 2", "gemv-collectives_2d", "open", 3212),
        (("rows:4,", "rows:2,"), ("cols:4,", "cols:2,"), ("dims=11,6", "dims=9,4")),
    ),
    Program(
        *("gemv-collectives_2d, 8 x 8", "gemv-collectives_2d", "open", 3921),
        (("rows:4,", "rows:8,"), ("cols:4,", "cols:8,"), ("dims=11,6", "dims=15,10")),
    ),
)


def program_rows(suite: Path) -> Iterator[Row]:
    """Whole programs: by their own clock where they have one, else the cycles of the whole run."""
    with TemporaryDirectory() as folder:
        copied = Path(folder) / "suite"
        shutil.copytree(suite, copied)
        rows = {one.name: _program_row(copied / "benchmarks", one) for one in _PROGRAMS}
    yield from rows.values()
    shallow, deep = rows[_SPMV], rows[_SPMV_DEEP]
    ours, published = (deep.ours - shallow.ours) / 55, (deep.published - shallow.published) / 55
    yield Row(f"{_SPMV}, a layer", Arch.WSE3, "program", ours, published)


def _program_row(home: Path, program: Program) -> Row:
    folder = home / program.folder
    script = (folder / "commands_wse3.sh").read_text(encoding="utf-8")
    for old, new in program.edits:
        assert old in script, f"{program.name}: the command file does not say '{old}'"
        script = script.replace(old, new)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    found = _OWN_CLOCK.search(done.stdout)
    if found is None and done.returncode:
        raise RuntimeError(f"{program.name} failed:\n{done.stderr}")
    whole = json.loads((folder / "sim_stats.json").read_text(encoding="utf-8"))
    ours = float(found[1]) if found else float(whole["cycle_count"])
    label = f"{program.name}, {'own clock' if found else 'whole run'}"
    return Row(label, Arch.WSE3, program.kind, ours, program.published)


def table(rows: Iterable[Row], before: Mapping[tuple[str, str], str]) -> str:
    """Rows in Markdown, beside what they were before, where that is known."""
    lines = ["| row | generation | kind | before | ours | published | ratio | fitted |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        earlier = before.get((row.name, str(row.arch)), "")
        numbers = f"{earlier} | {row.ours:,.1f} | {row.published:,.1f} | {row.ratio:.2f}"
        fitted = ", ".join(f"`{name}`" for name in row.fitted) or "no"
        lines.append(f"| {row.name} | {row.arch} | {row.kind} | {numbers} | {fitted} |")
    return "\n".join(lines) + "\n"


def earlier_cycles(text: str) -> dict[tuple[str, str], str]:
    """Our cycles in a table, by row and generation."""
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in text.splitlines())
    ours = head.index("ours")
    return {(cells[1], cells[2]): cells[ours] for cells in rows}


def summary(rows: Sequence[Row]) -> str:
    """How far rows are from published figures, those that no parameter was fitted to apart."""
    lines = []
    for word, chosen in (
        ("fitted to no parameter", [row for row in rows if not row.fitted]),
        ("fitted", [row for row in rows if row.fitted]),
    ):
        errors = sorted(abs(row.ratio - 1) for row in chosen)
        ninth = errors[ceil(0.9 * len(errors)) - 1]
        share = sum(error <= 0.15 for error in errors) / len(errors)
        errors_of = f"median error {median(errors):.1%}, 90% within {ninth:.1%}"
        ratio = median(row.ratio for row in chosen)
        more = f"median ratio {ratio:.2f}, {share:.0%} within 15%"
        lines.append(f"{len(chosen)} rows {word}: {errors_of}, {more}\n")
    return "".join(lines)


def parameters() -> str:
    """Parameters of time in Markdown."""
    lines = ["| parameter | WSE-2 | WSE-3 | class | from | rows that it was fitted to |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, origin in ORIGINS.items():
        values = " | ".join(
            hex(value) if name == "stride_widths" and value else str(value)
            for value in (getattr(one, name) for one in (WSE2_TIMING, WSE3_TIMING))
        )
        fitted = "; ".join(origin.fitted) or "none"
        lines.append(f"| `{name}` | {values} | {origin.source} | {origin.reason} | {fitted} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", type=Path, help="a clone of Cerebras/csl-examples")
    parser.add_argument("--stencils", type=Path, help="a clone of Elia-Belli/stencil-cerebras")
    parser.add_argument("--products", type=Path, help="a clone of pr0f3ss/SpMM_Cerebras")
    parser.add_argument("--rings", type=Path, help="a clone of da-luce/cs5220_hw4")
    parser.add_argument("--tiles", type=Path, help="a clone of Jorineg/cerebras")
    parser.add_argument("--halves", type=Path, help="a clone of junesookang/WaferLLM")
    parser.add_argument("--chain", type=int, default=512, help="PEs of the chain reduction")
    parser.add_argument("--before", type=Path, help="the table of an earlier state, for a column")
    parser.add_argument("--write", type=Path, help="Markdown file that takes the table")
    arguments = parser.parse_args()
    rows = [row for arch in Arch for row in (*one_pe_rows(arch), *fabric_rows(arch))]
    rows.append(chain_reduction(arguments.chain, 8 * arguments.chain))
    if arguments.suite:
        rows += program_rows(arguments.suite)
    if arguments.stencils:
        rows += stencil_rows(arguments.stencils)
    if arguments.products:
        rows += product_rows(arguments.products)
    if arguments.rings:
        rows += ring_rows(arguments.rings)
    if arguments.tiles:
        rows += tile_rows(arguments.tiles)
    if arguments.halves:
        rows += half_rows(arguments.halves)
    earlier = arguments.before and arguments.before.read_text(encoding="utf-8")
    text = table(rows, earlier_cycles(earlier) if earlier else {})
    print(text + summary(rows), end="")
    if arguments.write:
        write_text(arguments.write, text)
        write_text(arguments.write.with_name("timing-parameters.inc"), parameters())


if __name__ == "__main__":
    main()
