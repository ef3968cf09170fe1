"""Attention and losses in the program that keeps activations, against numpy."""

from dataclasses import replace

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.kernels.causal_attention import plan_attention
from openwafer.sdk.kernels.losses import plan_cross_entropy
from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_plan import Heads, ResidentPlan, plan_resident, with_heads
from tests.sdk.kernels.test_attention import exact, operands

HEADS, NUM_CLASSES, NUM_TOKENS = Heads(2, 4, 6), 5, 12


def plan_of(arch: str, columns: int) -> ResidentPlan:
    return plan_resident((2, columns), NUM_TOKENS, 8, arch=arch)


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "columns"), [("wse3", 3), ("wse2", 1)])
def test_attention_beside_what_is_held_is_numpys_up_to_its_bounds(arch: str, columns: int) -> None:
    resident = Resident(plan_of(arch, columns))
    alone = plan_attention((8, NUM_TOKENS), 2, (2, columns), length=HEADS.length, arch=arch)
    *given, dy = operands(alone, 0)
    held = [resident.hold(one) for one in (*given, dy)]
    # Another program is loaded, and finds them where they were.
    resident.become(with_heads(resident.plan, HEADS))
    made = resident.attention(*held[:3])
    found = resident.attention_delta((held[0], held[1], held[2]), made, held[3])
    out, *gradients = exact(alone, [*given, dy])
    assert (np.abs(resident.values(made.out) - out) <= alone.error_bound(*given)).all()
    bounds = alone.gradient_bounds(dy, (given[0], given[1], given[2]))
    for one, want, name in zip(found, gradients, ("queries", "keys", "values"), strict=True):
        assert (np.abs(resident.values(one) - want) <= getattr(bounds, name)).all()
    resident.close()


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_loss_and_its_gradients_are_numpys_up_to_their_bounds(arch: str) -> None:
    resident = Resident(replace(plan_of(arch, 1), num_classes=NUM_CLASSES))
    logits = np.random.default_rng(1).normal(size=(NUM_CLASSES, NUM_TOKENS)).astype(np.float32)
    labels = np.arange(NUM_TOKENS) % NUM_CLASSES
    held = resident.hold(logits)
    losses, gradients = resident.cross_entropy(held, labels.astype(np.int32), 1 / NUM_TOKENS)
    bounds = plan_cross_entropy(logits.shape, (2, 1), arch=arch).error_bounds(logits, labels)
    shares = np.exp(logits.astype(float))
    shares /= shares.sum(0)
    assert (np.abs(losses + np.log(shares[labels, range(NUM_TOKENS)])) <= bounds.losses).all()
    shares[labels, range(NUM_TOKENS)] -= 1
    found = resident.values(gradients)
    assert (np.abs(found - shares / NUM_TOKENS) <= bounds.gradients).all()
    assert (resident.values(resident.scale(held, 0.5)) == logits / 2).all()
    resident.close()


def test_heads_and_tokens_that_do_not_divide_are_refused_in_words() -> None:
    with pytest.raises(OpenwaferError, match="heads of 3 features on 2 rows of PEs"):
        with_heads(plan_of("wse3", 1), Heads(2, 3, 6))
    with pytest.raises(OpenwaferError, match=r"attention of 6 tokens of a PE[^$]*multiple of 4"):
        with_heads(plan_of("wse3", 2), HEADS)
    with pytest.raises(OpenwaferError, match="whose 49,152 have"):
        with_heads(plan_of("wse3", 1), Heads(100, 4, 6))
