"""Wherever a run goes, forwards or back, it is what a fresh run is there."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.debug import Debugger, Halt, Reason
from tests.sdk.debug.written_words import HEAD, NUM_WORDS, Written, opened, ran, written
from tests.tables import case

POINTS = 10
"""Cycles of each program that are gone to."""
SLOW_SEEDS = range(100)


def digest(debugger: Debugger) -> str:
    return debugger.simulator.snapshot().machine.digest()


def state_at(fresh: Debugger, cycle: int) -> str:
    """The state at the end of a cycle of a run that only goes on."""
    assert fresh.simulator.cycle <= cycle
    fresh.run_to_cycle(cycle)
    return digest(fresh)


def stops_somewhere(debugger: Debugger, program: Written, dice: random.Random) -> None:
    """Add two breakpoints: of lines, words, arrivals or a cycle."""
    for _ in range(2):
        match dice.randrange(4):
            case 0:
                line = len(HEAD.splitlines()) + 1 + dice.randrange(len(program.body))
                debugger.breakpoints.add("pe.csl", line)
            case 1:
                name = f"{dice.choice(['a', 'got'])}[{dice.randrange(NUM_WORDS)}]"
                value = debugger.look(1).evaluator.variable(name)
                debugger.breakpoints.add_value(name, 1, value)
            case 2:
                debugger.breakpoints.add_arrivals(0, [1])
            case _:
                debugger.stop_at_cycle(dice.randrange(1, 60))


def halts_of(fresh: Debugger) -> list[Halt]:
    """Where a run stops that only goes on."""
    found = []
    while (halt := fresh.go_on()).reason is Reason.BREAKPOINT:
        found.append(halt)
    return found


def last_before(halts: list[Halt], cycle: int) -> Halt | None:
    """The last one before the end of a cycle, those at that end left out."""
    before = [one for one in halts if (one.cycle, one.statement < 0) < (cycle, True)]
    return before[-1] if before else None


def check_points(seed: int, folder: Path, arch: Arch) -> None:
    compiled = ran(written(seed), folder, arch)
    debugger, fresh = (opened(compiled, folder, spacing) for spacing in (16, 1 << 40))
    end, dice = debugger.go_on().cycle, random.Random(seed)
    cycles = [dice.randrange(end) for _ in range(POINTS)]
    states = {cycle: state_at(fresh, cycle) for cycle in sorted(cycles)}
    for cycle in cycles:
        debugger.run_to_cycle(cycle)
        assert (debugger.simulator.cycle, digest(debugger)) == (cycle, states[cycle])


def check_back(seed: int, folder: Path, arch: Arch) -> None:
    program, dice = written(seed), random.Random(seed)
    compiled = ran(program, folder, arch)
    debugger, fresh = (opened(compiled, folder, spacing) for spacing in (16, 1 << 40))
    end = debugger.go_on().cycle
    state = dice.getstate()
    stops_somewhere(fresh, program, dice)
    halts = halts_of(fresh)
    cycles = [dice.randrange(1, end) for _ in range(2)]
    for cycle in cycles:
        debugger.run_to_cycle(cycle)
        dice.setstate(state)
        stops_somewhere(debugger, program, dice)
        found, expected = debugger.go_back(), last_before(halts, cycle)
        assert found == (expected or replace(found, reason=Reason.START, cycle=0, pe=None))
        for one in list(debugger.breakpoints):
            debugger.breakpoints.delete(one.number)


@pytest.mark.parametrize("arch", [Arch.WSE3, case(Arch.WSE2, by_default=False)])
def test_cycles_are_what_they_are_in_a_fresh_run(tmp_path: Path, arch: Arch) -> None:
    check_points(1, tmp_path, arch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_a_thousand_points_are_those_of_fresh_runs(tmp_path: Path, seed: int) -> None:
    check_points(seed, tmp_path, list(Arch)[seed % 2])


def test_a_way_back_ends_at_the_last_hit_of_a_full_recording(tmp_path: Path) -> None:
    check_back(2, tmp_path, Arch.WSE3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_two_hundred_ways_back_end_at_the_last_hit(tmp_path: Path, seed: int) -> None:
    check_back(seed, tmp_path, list(Arch)[seed % 2])
