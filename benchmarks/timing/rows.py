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
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.timing import ORIGINS, RULES
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.fabric.simulator import SimulatorOptions
from openwafer.sdk.host.pe_code import EngineKind, PeCode, build_engine
from openwafer.sdk.host.symbols import HostSymbols

HERE: Final = Path(__file__).parent
_QUEUE: Final = 3
"""An output queue that lets a word a cycle through, on both generations."""


@dataclass(frozen=True)
class Row:
    """A figure: ours against the published one.

    Attributes:
        kind: what it is held to (:data:`TOLERANCES`). ``open`` is held to nothing: a published
            figure whose program is known in outline only, or whose cause is not known.
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
    def fitted(self) -> tuple[str, ...]:
        """Parameters and rules that were chosen by this row, which then confirms nothing."""
        chosen = {**{name: origin.fitted for name, origin in ORIGINS.items()}, **RULES}
        names = {self.name, f"{self.name}, {self.arch}"}
        return tuple(what for what, rows in chosen.items() if names.intersection(rows))

    @property
    def is_close(self) -> bool:
        """Whether it is as near as its kind asks, in cycles or in parts of the published figure."""
        if self.kind not in TOLERANCES:
            return True
        cycles, part = TOLERANCES[self.kind]
        return abs(self.ours - self.published) <= max(cycles, part * self.published)


TOLERANCES: Final = {
    "operation": (2.0, 0.02),
    "fabric": (2.0, 0.02),
    "scalar": (1.0, 0.05),
    "program": (0.0, 0.1),
}


@dataclass(frozen=True)
class Device:
    """A program on the fabric, run once."""

    simulator: Simulator
    symbols: HostSymbols
    engine: PeCode
    arch: Arch

    def words(self, name: str, x: int = 0, y: int = 0) -> NDArray[np.uint16]:
        """Words of the array that an exported pointer of a PE shows."""
        pointer = self.symbols.symbol(name, x, y)
        return self.simulator.read(x, y, pointer.address, pointer.num_words)

    def note(self, place: int, x: int = 0, y: int = 0) -> int:
        """What a PE noted of its clock at a place in its stamps."""
        words = self.words("stamps", x, y)
        return int(words[place]) | int(words[place + 1]) << 16

    def elapsed(self, start: tuple[int, int] = (0, 0), end: tuple[int, int] = (0, 2)) -> int:
        """Cycles between two notes, each a PE's column and the place in its stamps.

        A PE's clock begins with the command, which each column gets a hop later.
        """
        (first_x, first), (last_x, last) = start, end
        later = GENERATIONS[self.arch].timing.hop_cycles * (last_x - first_x)
        return self.note(last, last_x) - self.note(first, first_x) + later


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
    return Device(simulator, symbols, code, arch)


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
            ours = (cycles[one.name] - cycles.get(one.less, 0)) / one.times
            yield Row(one.name, arch, one.kind, ours, one.published)


def fabric_rows(arch: Arch) -> Iterator[Row]:
    """Hops, links, ramps, tasks and chains."""
    yield from _link_rows(arch)
    yield from _stencil_rows(arch)
    if arch is WSE3:
        task = [run("loop_back", arch, extent=n, has_task=True).elapsed() for n in (10, 20)]
        yield Row("data task that notes the time", arch, "open", (task[1] - task[0]) / 10, 31.5)
        for extent in (10, 50):
            ours = _a_hop(arch, extent, is_sum=False)
            name = f"store and forward of {extent} words, a hop"
            yield Row(name, arch, "fabric", ours, 1.001 * extent + 16.1)
        yield from _relay_rows()
    else:
        yield Row("chain sum, a PE", arch, "fabric", _a_hop(arch, 20, is_sum=True), 6)
        for queue, published in _SENDING:
            own, _ = _landings(arch, extent=196, out_queue=queue)
            name = f"196 words from output queue {queue}"
            yield Row(name, arch, "fabric", own[-1] - own[0], published)
        for num, published in _LOOP_BACK:
            ours = run("loop_back", arch, extent=num, has_task=False).elapsed()
            yield Row(f"ramp loop-back of {num} words", arch, "open", ours, published)


_SENDING: Final = ((2, 195), (4, 487))
_LOOP_BACK: Final = (
    *((1, 34), (2, 36), (5, 51), (10, 66), (20, 101), (50, 209)),
    *((100, 387), (200, 737), (500, 1787), (1000, 3537), (2000, 7037)),
)
_STENCIL: Final = {WSE2: ((3, 12), (4, 15), (5, 16)), WSE3: ((3, 17), (4, 21), (5, 23))}
_STEPS: Final = 50
_RELAY: Final = (46, 76, 107, 138, 169)
_ROWS: Final = ((4, 28), (8, 28), (16, 28), (32, 28))
_CORNERS: Final = ((4, 67), (8, 75), (16, 91))


def _stencil_rows(arch: Arch) -> Iterator[Row]:
    """A step of a stencil with a cell a PE, at the PE in the middle."""
    kind = "fabric" if arch is WSE2 else "open"
    for size, published in _STENCIL[arch]:
        middle = size // 2
        short, long = (
            run("stencil", arch, size=size, steps=steps).note(2, middle, middle)
            for steps in (_STEPS, 2 * _STEPS)
        )
        name = f"one-cell stencil, {size} x {size}, a step"
        yield Row(name, arch, kind, (long - short) / _STEPS, published)


def _relay_rows() -> Iterator[Row]:
    """A word goes from PE to PE by tasks, along a row, and to a row and its columns."""
    device = run("relay", WSE3, width=len(_RELAY) + 1, height=1, has_tasks=True)
    yield Row("first look at the clock", WSE3, "scalar", device.note(0), 5)
    for x, published in enumerate(_RELAY, 1):
        yield Row(f"chain of tasks, PE {x}", WSE3, "open", device.note(2, x), published)
    for width, published in _ROWS:
        device = run("relay", WSE3, width=width, height=1, has_tasks=False)
        ours = device.note(2, width - 1)
        yield Row(f"broadcast along {width} PEs", WSE3, "open", ours, published)
    for size, published in _CORNERS:
        device = run("relay", WSE3, width=size, height=size, has_tasks=False)
        ours = device.note(2, size - 1, size - 1)
        yield Row(f"broadcast to {size} x {size} PEs", WSE3, "fabric", ours, published)


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
    """What a PE more adds to a chain; a sum's is published in one time for all PEs."""
    short, long = (
        run("chain", arch, width=width, extent=extent, is_sum=is_sum, out_queue=_QUEUE)
        for width in (5, 9)
    )
    if is_sum:
        return (long.elapsed((0, 0), (8, 2)) - short.elapsed((0, 0), (4, 2))) / 4
    return (long.note(2, 8) - short.note(2, 4)) / 4


def chain_reduction(num_pes: int, num_elements: int) -> Row:
    """The sum of a vector over a row of PEs; 56 of the published cycles are the program's."""
    device = run("chain", WSE2, width=num_pes, extent=num_elements, is_sum=True, out_queue=_QUEUE)
    ours = device.elapsed((0, 0), (num_pes - 1, 2))
    published = num_elements + 6 * (num_pes - 1) + 56
    return Row(
        f"chain reduction, {num_pes} PEs, {num_elements} words", WSE2, "fabric", ours, published
    )
