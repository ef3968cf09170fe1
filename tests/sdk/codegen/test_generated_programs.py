"""Compiled code does what the interpreter does, on programs that nobody wrote."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openwafer.sdk.codegen.objects import Effort
from openwafer.sdk.ir.verifier import verify
from tests.examples import examples
from tests.sdk.codegen.generated import random_module
from tests.sdk.codegen.oracle import Native, assert_same, run_interpreter, run_native

_ANY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _compare(random: Random, effort: Effort) -> None:
    module = random_module(random)
    verify(module)
    native = run_native(Native(module, effort=effort), arguments=[7])
    assert_same(native, run_interpreter(module, arguments=[7]))


@examples(20, _ANY, by_default=3)
@given(random=st.randoms(use_true_random=False))
def test_generated_programs_run_as_interpreted(random: Random) -> None:
    _compare(random, Effort.LIGHT)


@pytest.mark.slow
@settings(_ANY, max_examples=300)
@given(random=st.randoms(use_true_random=False))
def test_many_generated_programs_run_as_interpreted(random: Random) -> None:
    _compare(random, Effort.NONE)
