"""A run folder read back, and its mistakes told."""

import json
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import load_run
from openwafer.training.plan_record import Activations, Home, Mode
from tests.training.metrics.synthetic_run import SAMPLE, change_plan, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "stdlib-gpt", num_layers=4, num_steps=30)


def test_a_run_is_read_whole(folder: Path) -> None:
    run = load_run(folder)
    assert (run.name, len(run.metrics.rows), run.sample) == ("stdlib-gpt", 30, SAMPLE)
    assert run.trace is not None
    assert run.trace.select().step == 28


def test_the_plan_keeps_where_each_layer_lives(folder: Path) -> None:
    plan = load_run(folder).plan
    layer = plan.layers[1]
    assert (plan.mode, layer.weights_tier, layer.states_tier) == (
        Mode.STREAMED,
        Home.DISK,
        Home.DISK,
    )
    assert layer.activations is Activations.RECOMPUTE


def test_the_environment_tells_machine_and_releases(folder: Path) -> None:
    facts = load_run(folder).environment
    assert facts is not None
    assert {"device", "processor", "host memory", "python", "torch"} <= facts.keys()


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("trace.json", "trace"),
        ("validation.jsonl", "validation"),
        ("sample.json", "sample"),
        ("environment.json", "environment"),
    ],
)
def test_what_a_run_did_not_write_is_none(folder: Path, name: str, field: str) -> None:
    (folder / name).unlink()
    assert getattr(load_run(folder), field) is None


@pytest.mark.parametrize("name", ["config.yaml", "plan.json", "metrics.jsonl"])
def test_a_folder_that_is_no_run_is_refused_with_the_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(OpenwaferError, match=rf"{name}: No such file[^$]*the folder of a run"):
        load_run(folder)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"version": 7}, r"plan\.json: expected .* version 3, found 'openwafer-plan' version 7"),
        ({"mode": "hovering"}, r"plan\.json: mode: invalid enum value 'hovering'"),
        ({"layers": {}}, r"plan\.json: layers: expected a list, found dict"),
        ({"layers": [{}]}, r"plan\.json: layers\[0\]: missing key 'name'"),
        ({"step_bytes": 3}, r"plan\.json: step_bytes: expected an object, found int 3"),
        ({"predicted_peak_bytes": "64 MiB"}, r"expected int, found str '64 MiB'"),
    ],
)
def test_a_broken_plan_is_named_by_file_and_key(
    folder: Path, changes: dict[str, object], complaint: str
) -> None:
    change_plan(folder, **changes)
    with pytest.raises(OpenwaferError, match=complaint):
        load_run(folder)


def test_a_prediction_that_was_not_made_is_none(folder: Path) -> None:
    change_plan(folder, predicted_step_seconds=None)
    assert load_run(folder).plan.predicted_step_seconds is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "config.yaml: not YAML"),
        ("- a", "config.yaml: expected keys and values, found list"),
    ],
)
def test_a_broken_config_is_named(folder: Path, text: str, complaint: str) -> None:
    (folder / "config.yaml").write_text(text)
    with pytest.raises(OpenwaferError, match=complaint):
        load_run(folder)


def test_an_environment_of_other_things_than_texts_is_refused(folder: Path) -> None:
    content = {"format": "openwafer-environment", "version": 1, "facts": {"cores": 2}}
    (folder / "environment.json").write_text(json.dumps(content))
    with pytest.raises(OpenwaferError, match=r"environment\.json: .*facts.*: expected str"):
        load_run(folder)
