"""Several systems like this machine, from a step that was measured on it."""

from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from openwafer.cli.joined_systems import Forecast, draw_forecast
from openwafer.cli.system_pictures import CHUNK_BYTES, FEW_NUMBERS, MODELS, draw_schedule
from openwafer.planning.systems.published import usual_hop
from openwafer.training.collectives import chunks
from openwafer.training.stream.plan.step_time import LayerSeconds, MeasuredStep, ScheduledStep
from openwafer.training.stream.replicas.ownership import StoreSystems, owners_of
from openwafer.training.stream.schedule import RecordBytes, UpdateTiming, Visit, build
from tests.replica_steps.event_run import ModelledStep, run_events
from tests.replica_steps.modelled_steps import MIB, weights_of

TIED = RecordBytes(3 * MIB, 2 * MIB)
BLOCK = RecordBytes(4 * MIB, 4 * MIB)


def measured(where: StoreSystems = StoreSystems.FIRST) -> MeasuredStep:
    """Six blocks, and a head that has the weights of the embedding; room for two layers."""
    blocks = [f"block {number}" for number in range(6)]
    sizes = {"tied": TIED, **dict.fromkeys(blocks, BLOCK)}
    middle = [Visit(block, (block,)) for block in blocks]
    visits = [Visit("embedding", ("tied",)), *middle, Visit("head", ("tied",))]
    schedule = build(visits, sizes, timing=UpdateTiming.ON_PUSH, capacity_bytes=8 * MIB)
    layers = {visit.layer: LayerSeconds(0.01, 0.03) for visit in visits}
    updates = {"tied": 0.5, **dict.fromkeys(blocks, 0.25)}
    layouts = {name: weights_of(name, size.weights) for name, size in sizes.items()}
    scheduled = ScheduledStep(schedule, visits, sizes, layers, updates)
    return MeasuredStep(scheduled, 6e9, layouts, where)


def event_seconds(forecast: Forecast) -> float:
    measured, blocks = forecast.measured, forecast.blocks
    joined = measured.joined(len(blocks), forecast.link_bytes_per_second, usual_hop().value)
    owners = owners_of(measured.layouts, len(blocks), measured.store_systems)
    return run_events(ModelledStep(measured.scheduled, joined, blocks, owners)).step


def test_shared_weights_are_summed_and_updated_once() -> None:
    embedding, block, *_, head = measured().streamed(8, num_systems=2).layers
    assert (embedding.gradient_bytes, embedding.update_seconds) == (2 * MIB, 0.5)
    assert (block.gradient_bytes, block.update_seconds) == (4 * MIB, 0.25)
    assert (head.weight_bytes, head.gradient_bytes, head.update_seconds) == (3 * MIB, 0, 0)


@pytest.mark.parametrize(
    ("link", "where"),
    [
        (None, StoreSystems.FIRST),
        (None, StoreSystems.ALL),
        (1e9, StoreSystems.FIRST),
        (1e9, StoreSystems.ALL),
        (1e7, StoreSystems.FIRST),
        (1e7, StoreSystems.ALL),
    ],
)
def test_a_forecast_is_that_of_the_events(link: float | None, where: StoreSystems) -> None:
    forecast = Forecast(measured(where), [2, 2, 2, 2], link)
    assert forecast.step_on(4).seconds == pytest.approx(event_seconds(forecast), rel=0.05)


def test_the_picture_ends_where_micro_batches_do() -> None:
    axes: Any = Canvas().subplots()
    draw_forecast(axes, Forecast(measured(), [3, 3], None))
    step = axes.get_lines()[1]
    assert [*step.get_xdata()] == [1, 2, 3, 4, 5, 6]
    assert step.get_ydata()[0] == 1


@pytest.mark.slow
def test_the_schedule_is_drawn_for_six_models_with_and_without_the_loss() -> None:
    axes: Any = Canvas().subplots()
    draw_schedule(axes)
    _, *lines = axes.get_lines()
    assert len(lines) == 2 * len(MODELS)
    for faster, to_loss in zip(lines[::2], lines[1::2], strict=True):
        number = FEW_NUMBERS[-1]
        assert to_loss.get_ydata()[-1] < faster.get_ydata()[-1] < number


def test_the_picture_cuts_sums_and_weights_as_they_are_cut() -> None:
    assert CHUNK_BYTES == chunks.CHUNK_BYTES
