"""A report sets the work of a model that leaves some out beside that of the whole model."""

from dataclasses import replace
from pathlib import Path

from openwafer.training.metrics import load_run
from openwafer.training.metrics.report.page import list_tiles
from tests.training.metrics.synthetic_run import write_run


def test_calls_flops_and_bytes_are_told_as_shares_of_the_whole(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, num_layers=2, num_steps=3))
    rows = tuple(replace(row, layer_calls=3, flops=50, fetch_bytes=30) for row in run.metrics.rows)
    moved = replace(run.plan.step_bytes, fetch=60)
    plan = replace(run.plan, whole_layer_calls=4, step_flops=200, step_bytes=moved)
    changed = replace(run, plan=plan, metrics=replace(run.metrics, rows=rows))
    told = {name: beside for name, _, beside in list_tiles(changed, None)}
    assert told["FLOPs a step"] == "25.0% of the whole model's, mean"
    assert told["Layer calls a step"] == "of 4, mean"
    assert told["Fetched a step"] == "50.0% of the whole model's, mean"
