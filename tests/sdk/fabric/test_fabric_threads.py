"""What a machine does does not depend on how many threads simulate it."""

from random import Random

import pytest
from hypothesis import given

from openwafer.sdk.fabric import SimulatorOptions
from tests.examples import examples
from tests.sdk.fabric.random_machines import Machine, build, machines, random_machine, trace_of

OPTIONS = SimulatorOptions(max_cycles=10**5)


@pytest.mark.parametrize("threads", [2, 4])
@examples(15, by_default=4, deadline=None)
@given(machine=machines())
def test_threads_leave_the_trace_as_it_is(threads: int, machine: Machine) -> None:
    several = SimulatorOptions(max_cycles=10**5, threads=threads)
    assert trace_of(machine, several) == trace_of(machine, OPTIONS)


def test_random_machines_end_in_every_way() -> None:
    ends = [trace_of(random_machine(Random(seed)), OPTIONS).end for seed in range(40)]
    kinds = {"True", "fabric-deadlock", "fabric-route-conflict"}
    assert all(any(kind in end for end in ends) for kind in kinds)


def test_each_thread_has_at_least_a_column() -> None:
    simulator, _code = build(random_machine(Random(0)), SimulatorOptions(threads=50))
    assert simulator.num_threads == simulator.size[0]
