"""What a machine notes changes nothing of the run, and says what happened in it."""

from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import EventKind, Scope, SimulatorOptions
from tests.examples import examples
from tests.sdk.fabric.noted import Noted
from tests.sdk.fabric.random_machines import CYCLES, Machine, build, machines, random_machine
from tests.tables import some

Columns = dict[str, np.ndarray[Any, np.dtype[np.int64]]]


def ended(machine: Machine, scope: Scope | None) -> tuple[list[Any], Columns]:
    """What a run is at its end, and what was noted of it."""
    options = SimulatorOptions(scope=scope, landing_log=True, has_account=True, is_checked=True)
    simulator, _code = build(machine, options)
    noted = Noted(simulator)
    told = ""
    try:
        simulator.run_until_idle(CYCLES)
    except OpenwaferError as stop:
        told = str(stop)
    memory = [simulator.read(x, y, 0, 4000).tolist() for x, y in machine.drafts]
    seen = [simulator.cycle, simulator.statistics(), simulator.landings(), simulator.findings()]
    return [told, memory, simulator.account().cycles.tolist(), *seen], noted.columns()


@examples(20, by_default=8, deadline=None)
@given(machine=machines())
def test_a_run_is_the_same_whatever_is_noted_of_it(machine: Machine) -> None:
    plain = ended(machine, None)[0]
    assert ended(machine, Scope())[0] == plain
    assert ended(machine, Scope((0, 1, 1, 1), (10, 500), (1, 2)))[0] == plain


@examples(20, by_default=8, deadline=None)
@given(machine=machines())
def test_counts_of_events_are_those_of_the_run(machine: Machine) -> None:
    (_, _, _, _, counts, *_), noted = ended(machine, Scope())
    kinds = noted["kind"]
    assert np.count_nonzero(kinds == EventKind.SENT) == counts.wavelets
    assert np.count_nonzero(kinds == EventKind.LANDING) == counts.landings
    assert np.count_nonzero(kinds == EventKind.CHOSEN) == counts.tasks


OPTIONS = SimulatorOptions(scope=Scope())


def noted_in_steps(seed: int, cycles: int) -> dict[str, list[int]]:
    """What a random machine notes when its host looks up every so many cycles."""
    simulator, _code = build(random_machine(Random(seed)), OPTIONS)
    noted = Noted(simulator)
    with suppress(OpenwaferError):
        while simulator.cycle < CYCLES and not simulator.run_until_idle(cycles):
            pass
    return noted.lists()


@pytest.mark.parametrize("seed", some(range(12), *range(4)))
def test_events_depend_on_no_number_of_steps(seed: int) -> None:
    assert noted_in_steps(seed, 100) == noted_in_steps(seed, CYCLES)


OF_THE_HOST = {EventKind.PRINT, EventKind.HOST, EventKind.HOST_END, EventKind.END}
RARE = {EventKind.NOWHERE, EventKind.LOST, EventKind.FINDING, EventKind.UNBLOCKED, EventKind.OWN}


def test_all_kinds_but_rare_ones_happen_in_random_machines() -> None:
    seen = {kind for seed in range(40) for kind in noted_in_steps(seed, CYCLES)["kind"]}
    assert set(EventKind) - OF_THE_HOST - RARE - seen == set()
