"""What random loops do with state_dicts, memory and several models is plain, or refused."""

from functools import partial

import pytest
from hypothesis import given, settings

from tests.training.fuzz.random_states import StatesLoop, states_cases
from tests.training.fuzz.random_streams import Streams, streams_cases, train_streams
from tests.training.fuzz.random_training import Case, train
from tests.training.fuzz.test_random_training import WHATEVER, check_both


def check_states(case: Case) -> str | None:
    return check_both(partial(train, case, kind=StatesLoop), case.policy)


def check_streams(case: Streams) -> str | None:
    return check_both(partial(train_streams, case), case.policy)


@settings(max_examples=2, suppress_health_check=WHATEVER)
@given(case=states_cases())
def test_random_states_are_those_of_plain_training_or_refused(case: Case) -> None:
    check_states(case)


@settings(max_examples=2, suppress_health_check=WHATEVER)
@given(case=streams_cases())
def test_random_streams_are_plain_training_or_refused(case: Streams) -> None:
    check_streams(case)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=WHATEVER)
@given(case=states_cases())
def test_many_random_states_are_those_of_plain_training_or_refused(case: Case) -> None:
    check_states(case)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=WHATEVER)
@given(case=streams_cases())
def test_many_random_streams_are_plain_training_or_refused(case: Streams) -> None:
    check_streams(case)
