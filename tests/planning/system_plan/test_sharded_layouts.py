"""Layouts of several GPUs beside a count by hand.

By hand a weight is 2 bytes, its gradient 2, its states in Adam 12 (Rajbhandari et al. 2020, arXiv
1910.02054, section 3.1), and a ring of n moves (n - 1) / n of what it gathers or reduces.
"""

from dataclasses import replace

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.system_plan import Mode, SystemPlan, plan_system
from openwafer.planning.systems import A100, H200
from tests.planning.system_plan.tasks import SMALL, task, with_batch

WEIGHTS, LAYERS, WIDTH = 6.74e9, 32, 4096
LLAMA = task(WEIGHTS, LAYERS, WIDTH, batch_size=8)
SEQUENCE = 2048 * LAYERS * 17 * WIDTH * 2
FLOPS = (6 * WEIGHTS + 12 * LAYERS * WIDTH * 2048) * 8 * 2048
ROOMY = replace(A100, memory=replace(A100.memory, value=1e15))
LAYER = 2 * WEIGHTS / LAYERS
RING = 7 / 8 * 2 * WEIGHTS


def told(plan: SystemPlan, mode: Mode, what: str) -> float:
    return plan.figure("layouts", f"{mode}: {what}").value


@pytest.mark.parametrize(
    ("mode", "by_hand"),
    [
        (Mode.RESIDENT, (2 + 2 + 12) * WEIGHTS),
        (Mode.SHARDED_STATES, (2 + 2 + 12 / 8) * WEIGHTS),
        (Mode.SHARDED_GRADIENTS, (2 + (2 + 12) / 8) * WEIGHTS + 2 * LAYER),
        (Mode.SHARDED_WEIGHTS, (2 + 2 + 12) / 8 * WEIGHTS + 2 * LAYER + 2 * LAYER),
        (Mode.STREAMED, 2 * LAYER + 2 * LAYER),
    ],
    ids=str,
)
def test_each_layout_holds_what_is_counted_by_hand(mode: Mode, by_hand: float) -> None:
    """Two layers are whole where weights or gradients pass: one at work, one on its way."""
    plan = plan_system(LLAMA, ROOMY, 8)
    assert told(plan, mode, "memory") == pytest.approx(by_hand + SEQUENCE)


def test_sharded_states_let_weights_stay_that_would_stream_else() -> None:
    plan = plan_system(LLAMA, A100, 8)
    compute = FLOPS / (8 * 312e12 * 0.514)
    late = 2 * RING / 300e9 / LAYERS + 6 * A100.hop.value
    assert plan.mode is Mode.SHARDED_STATES
    assert plan.figure("step", "step").value == pytest.approx(compute + late)
    assert told(plan, Mode.STREAMED, "step") > 2 * plan.figure("step", "step").value
    assert plan.reason == (
        "weights, gradients, states and activations of 46.2 GB fit into 80 GB: weights stay, "
        "sharded, since all of them on each system are 107.8 GB without activations"
    )


def test_a_layout_without_room_tells_what_it_would_take() -> None:
    plan = plan_system(LLAMA, A100, 8)
    told = next(s for s in plan.sections if s.title == "layouts").figures
    assert [figure.name for figure in told[:2]] == [
        "resident: memory",
        "resident, states sharded (ZeRO-1): memory",
    ]
    assert told[0].source == "16 B a weight, and one sequence: more than there is"
    assert told[0].value > 80e9


def test_steps_that_wait_for_the_network_move_what_each_layout_has_to() -> None:
    """Of slow links: two rings of all weights in a step, three where weights are sharded, too."""
    slow = replace(ROOMY, server=None, network=replace(A100.network, value=1e9))
    plan = plan_system(LLAMA, slow, 8)
    ring, hops = RING / 1e9, 6 * A100.hop.value
    forward = FLOPS / 3 / (8 * 312e12 * 0.514)
    for mode, by_hand in (
        (Mode.RESIDENT, forward + 2 * ring),
        (Mode.SHARDED_STATES, 2 * ring),
        (Mode.SHARDED_GRADIENTS, 2 * forward + ring + ring / LAYERS + ring - forward),
        (Mode.SHARDED_WEIGHTS, 3 * ring + 2 * ring / LAYERS),
    ):
        assert told(plan, mode, "step") == pytest.approx(by_hand + hops)


def test_sharded_weights_are_gathered_for_each_micro_batch() -> None:
    """States of a large model leave room for few sequences; a batch of them takes more passes."""
    plan = plan_system(task(30e9, 48, 7168, batch_size=64), A100, 8)
    passes = plan.figure("step", "micro-batches of a system").value
    assert (plan.mode, passes > 1) == (Mode.SHARDED_WEIGHTS, True)
    again = {"kept": 0, "recomputed layer by layer": 0, "recomputed by groups of layers": 1}
    rings = passes * (3 + again[plan.activations])
    busy = plan.figure("step", "network").value
    assert busy == pytest.approx(rings * 7 / 8 * 60e9 / 300e9)


def test_streaming_is_no_layout_where_hosts_have_no_room_for_the_store() -> None:
    """20 bytes of 15 billion weights are 300 GB, and one GPU has 250 GB of its host."""
    plan = plan_system(task(15e9, 48, 5120, batch_size=1), ROOMY, 1)
    told = next(s for s in plan.sections if s.title == "layouts").figures[-1]
    assert told.name == "weight streaming: memory"
    assert told.source == "layers at work, and hosts without room for the store"
    assert plan.reason.endswith("weights stay")


def test_less_is_sharded_where_a_step_is_as_short() -> None:
    assert plan_system(SMALL, H200, 8).mode is Mode.RESIDENT


def test_beyond_a_server_the_network_joins_systems() -> None:
    inside, beyond = (plan_system(with_batch(LLAMA, 4 * n), A100, n) for n in (8, 16))
    tails = [plan.figure("step", "network and last layer").value for plan in (inside, beyond)]
    assert tails[1] - 8 * A100.hop.value == pytest.approx(2 * 15 / 16 * LAYER / 25e9)
    assert tails[0] < tails[1] / 5


def test_the_store_is_in_the_memory_that_a_host_shares_among_its_systems() -> None:
    """20 bytes a weight; 2 TB for eight leave 250 GB to one, 12.5 billion weights."""
    plan = plan_system(task(12e9, 40, 5120, batch_size=1), A100, 1)
    assert plan.mode is Mode.STREAMED
    assert plan.figure("memory", "host memory of a system").value == 20 * 12e9
    # Adam moves 36 bytes a weight, and an eighth of the host's 409.6 GB/s is its share.
    assert plan.figure("step", "store").value == pytest.approx(36 * 12e9 / 51.2e9)
    with pytest.raises(OpenwaferError) as refused:
        plan_system(task(13e9, 40, 5120, batch_size=1), A100, 1)
    assert "the share of 1 system of NVIDIA A100 80GB SXM in the memory of hosts is 250 GB" in str(
        refused.value
    )
    assert "take 2 systems, a smaller model" in str(refused.value)
