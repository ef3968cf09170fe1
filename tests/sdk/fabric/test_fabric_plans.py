"""Beats by a plan do what the beats of any operation do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.sdk.fabric import SimulatorOptions
from tests.examples import examples
from tests.sdk.fabric.random_machines import Machine, machines, trace_of


def compare(machine: Machine, *, is_checked: bool) -> None:
    planned, plain = (
        SimulatorOptions(max_cycles=10**5, is_checked=is_checked, has_plans=has_plans)
        for has_plans in (True, False)
    )
    assert trace_of(machine, planned) == trace_of(machine, plain)


@examples(60, deadline=None)
@given(machine=machines(), is_checked=st.booleans())
def test_plans_leave_the_trace_as_it_is(machine: Machine, is_checked: bool) -> None:
    compare(machine, is_checked=is_checked)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(machine=machines(), is_checked=st.booleans())
def test_plans_leave_many_traces_as_they_are(machine: Machine, is_checked: bool) -> None:
    compare(machine, is_checked=is_checked)
