"""``sim.log`` and ``sim_stats.json``, in the form that scripts parse."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

import openwafer
from openwafer.atomic_file import write_text
from openwafer.diagnostics import Diagnostic, Severity, render, tell
from openwafer.sdk.fabric import Landing, Print, Simulator
from openwafer.sdk.host.instruction_trace import InstructionTrace, TraceCounts
from openwafer.sdk.program.program import Program

DEBUG_VARIABLES: Final = ("SIMFABRIC_DEBUG", "SINGULARITYENV_SIMFABRIC_DEBUG")


_LANDINGS: Final = ("landing", "router")
_INSTRUCTIONS: Final = "inst_trace"


def wants_landings() -> bool:
    """Whether the environment asks for a line for each landing of a wavelet."""
    return any(word in _LANDINGS for word in _debug_words())


def wants_instructions() -> bool:
    """Whether the environment asks for what each PE did."""
    return _INSTRUCTIONS in _debug_words()


def _debug_words() -> list[str]:
    words = ",".join(os.environ.get(name, "") for name in DEBUG_VARIABLES).split(",")
    return [word for word in words if word]


def warn_of_debug_words() -> None:
    """Warn on the standard error of what the environment asks for and the log has not."""
    others = sorted(set(_debug_words()) - {*_LANDINGS, _INSTRUCTIONS})
    if others:
        warning = Diagnostic(
            Severity.WARNING,
            "debug-ignored",
            f"SIMFABRIC_DEBUG={','.join(others)} has no effect here",
            help="SIMFABRIC_DEBUG=landing writes the landing of each wavelet to sim.log, inst_trace"
            " what each PE does",
        )
        tell((warning,))


class SimLog:
    """Writes the records of a simulation to a folder.

    Args:
        program: that runs.
        simulator: where.
        folder: of the files.
        trace: of what PEs do, where that is asked for.
    """

    def __init__(
        self,
        program: Program,
        simulator: Simulator,
        folder: Path,
        trace: InstructionTrace | None = None,
    ) -> None:
        self._program = program
        self._simulator = simulator
        self._folder = folder
        self._trace = trace
        self._start_seconds = time.monotonic()

    def write(self, *, has_failed: bool = False, copy_cycles: int = 0) -> None:
        """Write both files, whole; copies take `copy_cycles` beside what the program does."""
        cause = "Stopped by an error" if has_failed else "Stopped due to idleness"
        done = None if self._trace is None else self._trace.counts()
        counts = self._counts(done)
        told = {
            **self._statistics(counts),
            "copy_cycle_count": copy_cycles,
            "sim_stop_cause": cause,
        }
        lines = [*self._lines(), *_last_lines(told, counts, done)]
        write_text(self._folder / "sim.log", "\n".join(lines) + "\n")
        write_text(self._folder / "sim_stats.json", json.dumps(told, indent=2) + "\n")

    def _lines(self) -> Iterator[str]:
        columns, rows = self._program.fabric
        yield f"GITREV openwafer {openwafer.__version__}"
        yield "Create from program"
        yield f"@0 dimX={columns}, dimY={rows}"
        yield from self._events()
        for warning in self._simulator.findings():
            yield from render(warning).splitlines()

    def _events(self) -> Iterator[str]:
        offset = self._program.offset
        events: list[tuple[int, int, str]] = [
            (event.cycle, 1, _print_line(event, offset)) for event in self._simulator.prints()
        ]
        events += [
            (event.cycle, 0, _landing_line(event, offset)) for event in self._simulator.landings()
        ]
        if self._trace is not None:
            events += [(cycle, 2, line) for cycle, line in self._trace.lines()]
        return (line for _, _, line in sorted(events, key=lambda event: event[:2]))

    def _counts(self, done: TraceCounts | None) -> dict[str, int]:
        """What happened in the run; of what PEs did only where that is traced."""
        counts = self._simulator.statistics()
        found = {"num_wavelets": counts.wavelets, "num_switch_pos": counts.switch_changes}
        if done is not None:
            found["num_stalls_"] = done.stalls
            found["num_inst_dispatch"], found["num_inst_pipe"] = done.issued, done.executed
        return found

    def _ports(self) -> dict[str, int]:
        """Words that have passed ports, and the cycles from the first to the last one."""
        simulator, found = self._simulator, {}
        for port in simulator.edge.ports:
            for way, colors in (("in", port.into), ("out", port.out)):
                if colors:
                    passed = simulator.passed(port, is_into=way == "in")
                    found[f"port_{port.name}_words_{way}"] = passed.num_words
                    found[f"port_{port.name}_cycles_{way}"] = passed.cycles
        return found

    def _statistics(self, counts: Mapping[str, int]) -> dict[str, float | int]:
        columns, rows = self._program.fabric
        seconds = time.monotonic() - self._start_seconds
        cycles = int(self._simulator.cycle)
        num_tiles = self._program.width * self._program.height
        rate = cycles / max(seconds, 1e-9)
        return {
            "cycle_count": cycles,
            **self._ports(),
            "cycles_per_second": rate,
            "fabric_x": columns,
            "fabric_y": rows,
            "hwtile_count": num_tiles,
            "iotile_count": 0,
            "nultile_count": columns * rows - num_tiles,
            "nodes": 1,
            **counts,
            "sim_time": seconds,
            "simulated_tile_count": num_tiles,
            "threads": self._simulator.num_threads,
            "tile_count": columns * rows,
            "tile_cycles_per_second": num_tiles * rate,
            "tile_cycles_per_second_per_thread": num_tiles * rate / self._simulator.num_threads,
            "total_time": seconds,
        }


def _last_lines(
    told: Mapping[str, Any], counts: Mapping[str, int], done: TraceCounts | None
) -> Iterator[str]:
    """What the log ends with."""
    cycles = told["cycle_count"]
    if done is not None:
        yield f"cycles={cycles}, {done.idle_cycles} cycles since an instruction was executed"
    ports = {name: count for name, count in told.items() if name.startswith("port_")}
    yield from (f"CTF Stats: {name} = {count}" for name, count in {**counts, **ports}.items())
    yield f"Simulation used {told['sim_time']:.3f} seconds, {cycles} cycles"


def _print_line(event: Print, offset: tuple[int, int]) -> str:
    return f"@{event.cycle} P{event.x + offset[0]}.{event.y + offset[1]}: {event.text}"


def _landing_line(event: Landing, offset: tuple[int, int]) -> str:
    low, high = event.data & 0xFFFF, event.data >> 16
    half = float(np.array(low, np.uint16).view(np.float16))
    place = f"P{event.x + offset[0]}.{event.y + offset[1]}"
    return (
        f"@{event.cycle} {place} (hwtile) landing C{event.color} from link {event.link}, "
        f"ctrl={int(event.is_control)}, idx={high:04X}, data={low:04X} ({half:g}), half=0, "
        f"ident={0:016X}, lf=0"
    )
