"""Any pipeline gets a valid floor plan or is refused, in words that say what would help."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.placement import (
    FloorPlan,
    LayerLoad,
    PipelineTask,
    Placement,
    Recomputing,
    find_faults,
    place_pipeline,
)
from openwafer.planning.placement.layer_load import wire_length
from openwafer.planning.systems import CS1, CS2, CS3, H200, System
from tests.examples import examples
from tests.planning.placement.pipelines import gpt_2, layer, pipeline, wafer
from tests.tables import some

LOADS = st.builds(
    LayerLoad,
    name=st.just("layer"),
    forward_flops=st.one_of(st.just(0.0), st.floats(1, 1e9)),
    backward_flops=st.one_of(st.just(0.0), st.floats(1, 1e9)),
    features=st.integers(1, 10_000),
    state_bytes=st.floats(0, 2e5),
    activation_bytes=st.floats(0, 1e3),
    output_bytes=st.floats(0, 1e3),
)
TASKS = st.builds(
    PipelineTask,
    layers=st.lists(LOADS, min_size=1, max_size=9).map(tuple),
    batch_size=st.integers(1, 6),
    sequence_length=st.integers(1, 32),
)
WAFERS = st.builds(wafer, st.integers(1, 40), st.integers(1, 40), st.floats(1e2, 5e4))


def placed_or_code(task: PipelineTask, system: System, replicas: int | None) -> Placement | str:
    """The code of the error where it is refused."""
    try:
        return place_pipeline(task, system, replicas)
    except OpenwaferError as refusal:
        return refusal.diagnostics[0].code


@examples(100, deadline=None)
@given(TASKS, WAFERS, st.none() | st.integers(1, 3))
def test_any_pipeline_gets_a_valid_floor_plan_or_is_refused(
    task: PipelineTask, system: System, replicas: int | None
) -> None:
    placement = placed_or_code(task, system, replicas)
    if isinstance(placement, str):
        assert placement in ("placement-memory", "placement-replicas")
        return
    for plan in filter(None, (placement.chosen, placement.rows_of_squares)):
        site = plan.site
        size = site.columns, site.rows
        told = find_faults([*plan.placed], plan.demands, plan.replicas, size, site.core_bytes)
        assert told == ()
    assert placement.chosen.step_seconds >= placement.least_step_seconds * (1 - 1e-9)


@examples(25, by_default=5, deadline=None)
@given(TASKS, WAFERS)
def test_a_floor_plan_is_the_same_each_time(task: PipelineTask, system: System) -> None:
    once, again = (placed_or_code(task, system, None) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("system", some([CS1, CS2, CS3], CS2), ids=lambda system: system.name)
def test_a_real_model_is_placed_faster_than_in_rows_of_squares(system: System) -> None:
    placement = place_pipeline(gpt_2(12, 768), system)
    simplest = placement.rows_of_squares
    assert simplest is not None
    assert placement.chosen.step_seconds < 0.6 * simplest.step_seconds
    assert placement.chosen.step_seconds < 1.025 * placement.least_step_seconds


def test_neighbours_in_the_pipeline_are_neighbours_on_the_wafer() -> None:
    plan = place_pipeline(gpt_2(24, 1024), CS2).chosen
    for one, other in zip(plan.rectangles, plan.rectangles[1:], strict=False):
        gap_x = max(one.x, other.x) - min(one.x + one.columns, other.x + other.columns)
        gap_y = max(one.y, other.y) - min(one.y + one.rows, other.y + other.rows)
        assert max(gap_x, gap_y) == 0


def test_wires_are_bytes_times_the_distance_of_centres() -> None:
    """Two layers of 4 and 6 columns side by side: their centres are 5 columns apart."""
    task = pipeline(layer(flops=400, output_bytes=3), layer(flops=600))
    plan = place_pipeline(task, wafer(10, 1, sum_cycles=1e-9)).chosen
    assert [own.columns for own in plan.rectangles] == [4, 6]
    assert wire_length(plan.demands, plan.rectangles) == 3 * 5


def test_cores_are_shared_by_work_and_by_memory() -> None:
    """A layer without work gets the three cores that its 2,500 bytes need, no more."""
    task = pipeline(layer(flops=0, state_bytes=2500), layer(), layer())
    plan = place_pipeline(task, wafer(13, 1)).chosen
    assert [own.cores for own in plan.rectangles] == [3, 5, 5]


def test_early_layers_hold_more_sequences_than_late_ones() -> None:
    """1F1B: of three layers with many sequences the first holds three, the last one."""
    task = pipeline(*[layer(activation_bytes=10)] * 3, batch_size=8, sequence_length=2)
    site = place_pipeline(task, wafer(10, 10)).chosen.site
    held = [demand.held_bytes for demand in site.demands(1, Recomputing.NONE)]
    assert held == [100 + 2 * 10 * sequences for sequences in (3, 2, 1)]


def test_activations_are_recomputed_where_kept_ones_do_not_fit() -> None:
    """Three sequences of 600 bytes do not fit into 1,000; three inputs and one sequence do."""
    layers = [layer(activation_bytes=600, output_bytes=5)] * 3
    plan = place_pipeline(pipeline(*layers, batch_size=8), wafer(3, 1)).chosen
    assert plan.recomputing is Recomputing.BY_LAYER
    first, _, last = plan.demands
    assert first.held_bytes == 100 + 3 * 8 + 600
    # The last layer holds a single sequence, and need not make its forward again.
    assert first.core_cycles == pytest.approx(4 / 3 * last.core_cycles)


def test_replicas_are_placed_where_they_make_a_step_shorter() -> None:
    """With few features a large rectangle is busy with partial sums."""
    few, many = (pipeline(*[layer(features=n)] * 2, batch_size=16) for n in (4, 10**6))
    assert place_pipeline(few, wafer(20, 20)).chosen.replicas > 1
    assert place_pipeline(many, wafer(20, 20)).chosen.replicas == 1


def test_a_pipeline_without_work_is_placed_too() -> None:
    placement = place_pipeline(pipeline(layer(flops=0)), wafer(2, 2))
    assert placement.chosen.step_seconds == 0
    assert "tokens in a second" not in placement.bounds


@pytest.mark.parametrize(
    ("task", "system", "replicas", "told"),
    [
        (gpt_2(48, 1600), CS1, None, r"placement-memory.*takes 33,163\.3 MB .* 17,547\.3 MB in "),
        (gpt_2(48, 1600), CS1, 2, r"placement-memory.*: 2 replicas take 65,"),
        (gpt_2(12, 768), H200, None, r"placement-system.*H200 SXM has no fabric of cores"),
        (gpt_2(12, 768), CS2, 65, r"65 replicas for a batch of 64 sequences(.|\n)*1 to 64"),
        (gpt_2(12, 768), CS2, 0, r"placement-replicas\]: 0 replicas for a batch"),
    ],
)
def test_what_cannot_be_placed_is_refused(
    task: PipelineTask, system: System, replicas: int | None, told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        place_pipeline(task, system, replicas)


def test_room_that_is_too_scattered_is_told() -> None:
    """4 cores in a square: layers of 3 cores and of 1 have no rectangles in it."""
    task = pipeline(layer(state_bytes=2500), layer(state_bytes=900))
    with pytest.raises(OpenwaferError, match="in no floor plan each layer finds its own"):
        place_pipeline(task, wafer(2, 2))


def test_a_longer_batch_fills_the_pipeline_for_a_smaller_share() -> None:
    short, long = (place_pipeline(gpt_2(12, 768, n), CS2, 1).chosen for n in (8, 512))
    tokens = 64 * 1024
    assert short.step_seconds * 64 / 8 == pytest.approx(21 / 8 * tokens * per_token(short))
    assert long.step_seconds * 64 / 512 == pytest.approx(525 / 512 * tokens * per_token(long))


def per_token(plan: FloorPlan) -> float:
    return next(f.value for f in plan.figures if f.name == "slowest layer")


def test_a_wafer_of_more_memory_holds_more() -> None:
    task = pipeline(layer(state_bytes=5000))
    with pytest.raises(OpenwaferError, match=r"takes 0\.005 MB .* has 0\.004 MB in 4 cores"):
        place_pipeline(task, wafer(2, 2))
    assert place_pipeline(task, wafer(2, 2, 1250)).chosen.rectangles[0].cores == 4
