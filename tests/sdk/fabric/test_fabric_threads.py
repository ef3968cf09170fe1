"""What a machine does does not depend on how many threads simulate it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.sdk.fabric import SimulatorOptions
from tests.sdk.fabric.random_machines import random_machine, trace_of


@pytest.mark.parametrize("threads", [2, 4])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_threads_leave_the_trace_as_it_is(threads: int, seed: int) -> None:
    alone = trace_of(seed, SimulatorOptions(max_cycles=10**5))
    assert trace_of(seed, SimulatorOptions(max_cycles=10**5, threads=threads)) == alone


def test_random_machines_end_in_every_way() -> None:
    ends = [trace_of(seed, SimulatorOptions(max_cycles=10**5)).end for seed in range(20)]
    kinds = {"True", "fabric-deadlock", "fabric-route-conflict"}
    assert all(any(kind in end for end in ends) for kind in kinds)


def test_each_thread_has_at_least_a_row() -> None:
    simulator, _code = random_machine(0, SimulatorOptions(threads=50))
    assert simulator.num_threads == simulator.size[1]
