"""The figures of a plan for a system, beside reckonings by hand and small simulations."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.figures import Origin
from openwafer.planning.placement import PipelineTask, place_pipeline
from openwafer.planning.system_plan import (
    Activations,
    Mode,
    SystemPlan,
    TrainingTask,
    plan_system,
    write_system_plan,
)
from openwafer.planning.systems import CS1, CS2, CS3, H200, System
from tests.planning.system_plan.tasks import GPT_3, SMALL, task, with_batch


def step_seconds(plan: SystemPlan) -> float:
    return plan.figure("step", "step").value


def test_a_resident_step_is_its_flops_over_the_peak_that_is_reached() -> None:
    flops = (6 * 1e8 + 12 * 12 * 768 * 2048) * 64 * 2048
    assert step_seconds(plan_system(SMALL, H200, 1)) == pytest.approx(flops / (0.41 * 989.5e12))


def test_a_streamed_step_with_few_tokens_is_limited_by_its_weights() -> None:
    """Three passes of 350 GB at 150 GB/s, and those of a layer at the end."""
    plan = plan_system(task(vectors=1, batch_size=2), CS2, 1)
    assert plan.limit == "stream"
    passes = 3 * 175e9 * 2 / 150e9
    assert step_seconds(plan) == pytest.approx(passes, rel=0.01)


@pytest.mark.parametrize(("system", "number"), [(CS2, 192), (H200, 16), (H200, 32)])
def test_what_is_planned_fits_and_one_sequence_more_does_not(system: System, number: int) -> None:
    made = with_batch(GPT_3, 1536)
    plan = plan_system(made, system, number)
    weights = plan.figure("memory", "weights beside the cores").value
    most = plan.figure("memory", "sequences of a pass, at most").value
    sequence = 2048 * made.activation_bytes(Activations(plan.activations))
    assert weights + most * sequence <= system.memory.value < weights + (most + 1) * sequence
    assert plan.figure("memory", "share of the memory").value <= 1


def gpt_j_rate(system: System, number: int) -> float:
    """Sequences a second of a batch of 120, as ALCF documents it."""
    made = task(6.053e9, 28, 4096, batch_size=120)
    return 120 / step_seconds(plan_system(made, system, number))


def test_gpt_j_is_planned_as_fast_as_it_was_measured() -> None:
    """The share of the peak is from these runs; activations, stream and passes are the plan's."""
    assert gpt_j_rate(CS2, 2) == pytest.approx(43.7, rel=0.01)
    assert gpt_j_rate(CS3, 1) == pytest.approx(44.75, rel=0.01)


def test_a_gpu_that_recomputes_takes_a_forward_longer() -> None:
    made = task(1e9, 24, 2048, batch_size=512)
    roomy = replace(H200, memory=replace(H200.memory, value=1e15))
    small, large = plan_system(made, H200, 1), plan_system(made, roomy, 1)
    assert (small.mode, small.activations, large.activations) == (Mode.RESIDENT, "kept", "kept")
    tight = plan_system(made, replace(H200, memory=replace(H200.memory, value=18e9)), 1)
    assert tight.activations == "recomputed layer by layer"
    assert step_seconds(tight) / step_seconds(large) == pytest.approx(4 / 3, rel=0.01)


def test_micro_batches_are_as_few_as_fit() -> None:
    plan = plan_system(GPT_3, H200, 16)
    most = plan.figure("memory", "sequences of a pass, at most").value
    assert plan.figure("step", "micro-batches of a system").value == math.ceil(96 / most)


def pipelined_seconds(sequences: int, layers: int, seconds: float) -> float:
    """When the last layer is done with the last sequence, each layer taking equally long."""
    free = [0.0] * layers
    for _ in range(sequences):
        done = 0.0
        for layer in range(layers):
            done = free[layer] = max(done, free[layer]) + seconds
    return free[-1]


@pytest.mark.parametrize("sequences", [1, 8, 64])
def test_a_pipeline_of_layers_fills_and_drains(sequences: int) -> None:
    plan = plan_system(with_batch(SMALL, sequences), CS1, 1)
    full = plan.figure("step", "compute").value
    behind = int(plan.figure("step", "micro-batches of a system").value)
    simulated = pipelined_seconds(behind, 12, full / behind)
    assert step_seconds(plan) == pytest.approx(simulated)


@pytest.mark.parametrize("system", [CS1, CS2, CS3], ids=lambda system: system.name)
def test_a_pipeline_is_planned_as_fast_as_it_is_placed(system: System) -> None:
    """Hardly faster, since a floor plan's rectangles lie side by side."""
    plan = plan_system(SMALL, system, 1)
    placement = place_pipeline(PipelineTask(SMALL.loads, 64, 2048), system)
    assert step_seconds(plan) == pytest.approx(placement.least_step_seconds)
    assert 1 <= placement.chosen.step_seconds / step_seconds(plan) < 1.025


@pytest.mark.parametrize("sequences", [1, 5, 12, 100])
def test_layers_hold_the_sequences_that_wait_for_their_backward(sequences: int) -> None:
    plan = plan_system(with_batch(SMALL, sequences), CS3, 1)
    assert plan.activations == "kept"
    copies = int(plan.figure("step", "copies on a system").value)
    own = math.ceil(sequences / copies)
    held = copies * sum(min(own, behind + 1) for behind in range(12))
    activations = plan.figure("memory", "activations beside the cores").value
    assert activations == pytest.approx(held * 2048 * 17 * 768 * 2)


def test_replicas_share_a_step_and_add_energy() -> None:
    made = with_batch(GPT_3, 192 * 70)
    one, four = (plan_system(made, CS2, number) for number in (48, 192))
    energies = [plan.figure("all", "energy").value for plan in (one, four)]
    assert energies[1] == pytest.approx(energies[0], rel=0.01)
    assert step_seconds(one) / step_seconds(four) == pytest.approx(4, rel=0.01)


def test_time_and_energy_are_those_of_all_steps() -> None:
    plan = plan_system(SMALL, H200, 4)
    seconds = plan.figure("all", "time").value
    assert seconds == 100 * step_seconds(plan)
    assert plan.figure("all", "energy").value == pytest.approx(seconds * 4 * 700 / 3600)


def test_steps_of_several_sizes_take_the_time_of_each() -> None:
    changing = replace(SMALL, changing=((16, 30), (64, 70)))
    plan = plan_system(changing, H200, 4)
    small, large = (step_seconds(plan_system(with_batch(SMALL, n), H200, 4)) for n in (16, 64))
    assert plan.figure("all", "time").value == 30 * small + 70 * large
    assert plan.figure("all", "tokens").value == (30 * 16 + 70 * 64) * 2048
    assert (
        "30 steps of 16, then 70 steps of 64"
        in plan.figure("training", "sequences of a step").source
    )


def gain_of_zeros(dense: TrainingTask, system: System) -> float:
    plans = [plan_system(made, system, 1) for made in (dense, replace(dense, sparsity=0.9))]
    return step_seconds(plans[0]) / step_seconds(plans[1])


def test_zeros_make_a_wafer_faster_and_a_gpu_not() -> None:
    assert gain_of_zeros(GPT_3, CS2) > 2
    assert gain_of_zeros(SMALL, H200) == 1


def test_every_figure_has_an_origin_and_a_source_in_the_file(tmp_path: Path) -> None:
    write_system_plan(tmp_path / "plan.json", plan_system(GPT_3, CS2, 16))
    content = json.loads((tmp_path / "plan.json").read_text())
    assert (content["format"], content["version"]) == ("openwafer-system-plan", 1)
    sections = {s["title"]: s["figures"] for s in content["plan"]["sections"]}
    assert list(sections) == ["training", "system", "memory", "step", "all"]
    figures = [figure for told in sections.values() for figure in told]
    assert {figure["origin"] for figure in figures} <= {str(origin) for origin in Origin}
    assert all(figure["source"] for figure in figures)
