"""A weight seen through any chain of views and casts has the gradients of the plain loop."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openwafer.training.plan_record import Activations
from tests.examples import examples
from tests.training.stream.both_loops import differing_under
from tests.training.stream.chained_views import STEPS, Chain, run_of

CHAINS = st.builds(
    Chain,
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 11)), max_size=6),
    st.sampled_from((torch.float32, torch.bfloat16, torch.float64, torch.complex64)),
    st.sampled_from((None, torch.bfloat16, torch.float16)),
)
ROW = Chain([("select", 3)], autocast_dtype=torch.bfloat16)
CHUNK_OF_CAST = Chain([("bf16", 0), ("chunk", 1), ("transpose", 1)])
CONJUGATE = Chain([("conj", 0)], torch.complex64)


@given(CHAINS, st.sampled_from(Activations))
@example(ROW, Activations.KEEP)
@example(CHUNK_OF_CAST, Activations.RECOMPUTE)
@example(CONJUGATE, Activations.KEEP)
@settings(max_examples=1, deadline=None)
def test_any_chain_of_views_and_casts(chain: Chain, policy: Activations) -> None:
    assert differing_under(run_of(chain), policy) == []


@pytest.mark.slow
@given(CHAINS, st.sampled_from(Activations))
@examples(400, deadline=None)
def test_many_chains_of_views_and_casts(chain: Chain, policy: Activations) -> None:
    assert differing_under(run_of(chain), policy) == []
