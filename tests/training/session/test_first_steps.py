"""The first steps are metered; those behind them say how long a step takes."""

from dataclasses import replace
from pathlib import Path
from statistics import median

from openwafer.config import Bytes
from openwafer.figures import Origin
from openwafer.training.metrics import load_run
from openwafer.training.plan_record import Mode
from openwafer.training.session.config_sections import BatchConfig
from openwafer.training.session.step_meter import FirstSteps
from openwafer.training.stream.device.device import ALWAYS_METERED
from tests.training.session.tiny_runs import TinyData, tiny_config, train_quietly


def test_a_plan_has_the_time_of_the_first_steps_beside_the_predicted_one(
    data: TinyData, tmp_path: Path
) -> None:
    first = slice(ALWAYS_METERED, ALWAYS_METERED + 3)
    batch = BatchConfig(size=6, sequence_length=12, micro_batches=2)
    config = replace(tiny_config(data, tmp_path), batch=batch, steps=ALWAYS_METERED + 4)
    result = train_quietly(config)
    run = load_run(result.folder)
    measured = run.plan.measured_step_seconds
    assert measured == median(row.seconds for row in run.metrics.rows[first])
    assert run.plan.predicted_step_seconds is not None
    assert run.plan.origins["measured_step_seconds"] is Origin.MEASURED
    assert f"a step takes {measured:.2g} s" in (result.folder / "log.txt").read_text()


def test_micro_batches_within_a_budget_are_metered_in_the_first_steps_alone(
    data: TinyData, tmp_path: Path
) -> None:
    batch = BatchConfig(size=6, sequence_length=12, micro_batches=2)
    config = replace(tiny_config(data, tmp_path), batch=batch, steps=ALWAYS_METERED + 2)
    streaming = replace(config.streaming, mode=Mode.STREAMED)
    config = replace(config, device_memory=Bytes(1_000_000), streaming=streaming)
    rows = load_run(train_quietly(config).folder).metrics.rows
    is_metered = [row.device_bytes_peak is not None for row in rows]
    assert is_metered == [True] * ALWAYS_METERED + [False] * 2


def test_steps_of_smaller_batches_and_metered_ones_do_not_count() -> None:
    steps = FirstSteps(most_samples=8)
    metered = [steps.note(100.0, 8) for _ in range(ALWAYS_METERED)]
    smaller = [steps.note(50.0, 4) for _ in range(5)]
    assert {*metered, *smaller} == {None}
    assert [steps.note(seconds, 8) for seconds in (3.0, 1.0, 2.0, 9.0)] == [None, None, 2.0, None]
