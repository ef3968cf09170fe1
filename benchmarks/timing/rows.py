"""Small programs that measure the simulated machine by its own clock, and what was published.

Each row is one figure of the published tables (docs/design/timing.md names the sources).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing.snippets import NOTHING, SNIPPETS, WSE2, WSE3
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.fabric.simulator import SimulatorOptions
from openwafer.sdk.host.engine import Engine, EngineKind, build_engine
from openwafer.sdk.host.symbols import HostSymbols

HERE: Final = Path(__file__).parent
_QUEUE: Final = 3
"""An output queue that lets a word a cycle through, on both generations."""


@dataclass(frozen=True)
class Row:
    """A figure: ours against the published one.

    Attributes:
        kind: ``operation`` and ``fabric`` are held to 2 cycles or 2%, ``program``, a whole one that
            measures itself, to 10%; ``scalar`` is told.
    """

    name: str
    arch: Arch
    kind: str
    ours: float
    published: float

    @property
    def ratio(self) -> float:
        """Ours by published."""
        return self.ours / self.published

    @property
    def is_close(self) -> bool:
        """Whether it is as near as its kind asks."""
        if self.kind == "program":
            return abs(self.ratio - 1) <= 0.1
        return abs(self.ours - self.published) <= max(2.0, 0.02 * self.published)

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.kind == "scalar":
            return "told"
        return "close" if self.is_close else "off"


@dataclass(frozen=True)
class Device:
    """A program on the fabric, run once."""

    simulator: Simulator
    symbols: HostSymbols
    engine: Engine

    def words(self, name: str, x: int = 0) -> NDArray[np.uint16]:
        """Words of the array that an exported pointer of PE (x, 0) shows."""
        pointer = self.symbols.symbol(name, x, 0)
        return self.simulator.read(x, 0, pointer.address, pointer.num_words)

    def elapsed(self, start: tuple[int, int] = (0, 0), end: tuple[int, int] = (0, 2)) -> int:
        """Cycles between two notes, each a PE's column and the place in its stamps."""
        first, last = (
            int(self.words("stamps", x)[place]) | int(self.words("stamps", x)[place + 1]) << 16
            for x, place in (start, end)
        )
        return last - first


def run(
    name: str,
    arch: Arch,
    *,
    engine: EngineKind = EngineKind.NATIVE,
    has_log: bool = False,
    **params: object,
) -> Device:
    """Compile a program of this folder and run its `main`, which all PEs begin at once."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in HERE.glob(f"{name}*.csl")}
    return run_files(texts, f"{name}_layout.csl", arch, engine=engine, has_log=has_log, **params)


def run_files(
    texts: dict[str, str],
    layout: str,
    arch: Arch,
    *,
    engine: EngineKind = EngineKind.NATIVE,
    has_log: bool = False,
    **params: object,
) -> Device:
    """The same for given files."""
    values = tuple((key, str(value).lower()) for key, value in params.items())
    options = CompileOptions(
        arch=arch, is_memcpy=True, params=values, max_inlined_iterations=1_000_000
    )
    with TemporaryDirectory() as folder:
        for file, text in texts.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        program = build_program(Path(folder) / layout, options)
    code = build_engine(program, engine)
    options_of_run = SimulatorOptions(landing_log=has_log)
    simulator = Simulator(program, code.run_address, code.element_address, options_of_run)
    symbols = HostSymbols(program)
    simulator.start_command(symbols.entries(symbols.named("main")))
    simulator.run_until_command_done()
    simulator.run_until_idle(100_000)
    return Device(simulator, symbols, code)


def one_pe_rows(arch: Arch) -> Iterator[Row]:
    """All snippets, in one program."""
    chosen = [NOTHING, *(snippet for snippet in SNIPPETS if arch in snippet.archs)]
    functions = "\n".join(f"fn row{i}() void {{ {one.code} }}" for i, one in enumerate(chosen))
    calls = "\n".join(
        f"  {one.before} time.get_timestamp(&begin); row{i}(); time.get_timestamp(&end);"
        f" cycles[{i}] = end[0] - begin[0];"
        for i, one in enumerate(chosen)
    )
    texts = {path.name: path.read_text(encoding="utf-8") for path in HERE.glob("one_pe*.csl")}
    text = texts["one_pe.csl"].replace("{functions}", functions)
    device = run_files(
        {**texts, "one_pe.csl": text.replace("{calls}", calls)}, "one_pe_layout.csl", arch
    )
    cycles = dict(zip((one.name for one in chosen), map(int, device.words("cycles")), strict=False))
    for one in chosen:
        if one.kind:
            ours = (cycles[one.name] - cycles[one.less]) / one.times
            yield Row(one.name, arch, one.kind, ours, one.published)


def fabric_rows(arch: Arch) -> Iterator[Row]:
    """Hops, links, ramps, tasks and chains."""
    yield from _link_rows(arch)
    task = [run("loop_back", arch, extent=n, has_task=True).elapsed() for n in (10, 20)]
    if arch is WSE3:
        yield Row("data task, a wavelet", arch, "fabric", (task[1] - task[0]) / 10, 31.5)
        for extent in (10, 50):
            ours = _a_hop(arch, extent, is_sum=False)
            name = f"store and forward of {extent} words, a hop"
            yield Row(name, arch, "fabric", ours, 1.001 * extent + 16.1)
    else:
        yield Row("chain sum, a PE", arch, "fabric", _a_hop(arch, 20, is_sum=True), 6)
        for queue, published in _SENDING:
            own, _ = _landings(arch, extent=196, out_queue=queue)
            name = f"196 words from output queue {queue}"
            yield Row(name, arch, "fabric", own[-1] - own[0], published)
        for num, published in _LOOP_BACK:
            ours = run("loop_back", arch, extent=num, has_task=False).elapsed()
            name = f"ramp loop-back of {num} words, registers loaded"
            yield Row(name, arch, "fabric", ours, published)


_SENDING: Final = ((2, 195), (4, 487))
_LOOP_BACK: Final = ((1, 34), (2, 36), (10, 66), (50, 209), (100, 387), (1000, 3537))


def _link_rows(arch: Arch) -> Iterator[Row]:
    own, other = _landings(arch, extent=8, out_queue=_QUEUE)
    yield Row("hop", arch, "fabric", other[0] - own[0], 1 if arch is WSE2 else 2)
    yield Row("link, wavelets a cycle", arch, "fabric", 7 / (own[-1] - own[0]), 1)


def _landings(arch: Arch, *, extent: int, out_queue: int) -> tuple[list[int], list[int]]:
    """Cycles of the landings at the sender's router and at its neighbour's."""
    device = run(
        "chain", arch, has_log=True, width=2, extent=extent, is_sum=False, out_queue=out_queue
    )
    at = [(landing.x, landing.cycle) for landing in device.simulator.landings()]
    return [cycle for x, cycle in at if x == 0], [cycle for x, cycle in at if x == 1]


def _a_hop(arch: Arch, extent: int, *, is_sum: bool) -> float:
    """What a PE more adds to a chain."""
    short, long = (
        run("chain", arch, width=width, extent=extent, is_sum=is_sum, out_queue=_QUEUE).elapsed(
            (0, 0), (width - 1, 2)
        )
        for width in (5, 9)
    )
    return (long - short) / 4


def chain_reduction(num_pes: int, num_elements: int) -> Row:
    """The sum of a vector over a row of PEs; 56 of the published cycles are the program's."""
    device = run("chain", WSE2, width=num_pes, extent=num_elements, is_sum=True, out_queue=_QUEUE)
    ours = device.elapsed((0, 0), (num_pes - 1, 2))
    published = num_elements + 6 * (num_pes - 1) + 56
    return Row(
        f"chain reduction, {num_pes} PEs, {num_elements} words", WSE2, "fabric", ours, published
    )
