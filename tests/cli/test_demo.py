"""The demonstration, on less of the library and with fewer steps."""

import re
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from openwafer.cli.demo import by_processor
from openwafer.training.session import Session
from openwafer.training.session.building import build_hollow_model, expected_vocab_size
from tests.cli.command import run_command, settings

SMALL = settings(
    [
        "steps=2",
        "data.source.paths=[json/*.py, email/*.py]",
        "data.tokenizer.vocab_size=300",
        "data.validation_share=0.2",
        "model={hidden_size: 16, num_layers: 2, num_heads: 2, context_length: 32}",
        "batch={size: 2, sequence_length: 32}",
        "streaming.mode=streamed",
        "trace_steps=[0, 1]",
    ]
)


def test_the_demo_ends_with_a_model_a_sample_and_a_report(tmp_path: Path) -> None:
    done = run_command("demo", "--folder", tmp_path, *SMALL)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"─ what the model writes ─+\nclass Reader:\n    def __init__\(self", done.out)
    assert re.search(r"─ (\d+ statements? beside|no whole program)", done.out)
    assert re.search(r"constrained to what Python can read, .*: \d+ tokens? refused", done.out)
    assert "AutoModelForCausalLM.from_pretrained loads it as LlamaForCausalLM" in done.out
    assert re.search(r"at most, where the plain loop\s+needs \d", done.out)
    for name in ("report.html", "trace.json", "exported/model.safetensors"):
        assert str(tmp_path / "demo" / name).removesuffix("/model.safetensors") in done.out
        assert (tmp_path / "demo" / name).is_file()


@pytest.mark.slow
def test_the_demo_of_the_wafer_shows_cycles_and_a_report(tmp_path: Path) -> None:
    done = run_command("demo", "--fabric", "--folder", tmp_path, *settings(["steps=2"]))
    assert (done.code, done.err) == (0, "")
    assert re.search(r"head +gradient +2 +[\d,]+", done.out)
    page = (tmp_path / "fabric-demo/report.html").read_text()
    assert "Cycles on the wafer" in page
    assert "8 x 4 PEs of wse3, simulated: " in page
    assert "computed on the host" not in done.out


@pytest.mark.parametrize(
    ("units", "precision", "optimizer"),
    [({"amx_bf16": True}, "bf16", "muon"), ({"amx_bf16": False, "avx2": True}, "fp32", "adamw")],
)
def test_no_step_multiplies_bf16_without_units_for_it(
    units: dict[str, bool], precision: str, optimizer: str
) -> None:
    with as_file(files("openwafer.cli") / "demo.yaml") as path:
        config = Session(path, by_processor(units)).config
    assert (config.precision, config.optimizer.name) == (precision, optimizer)


def test_the_demos_device_is_smaller_than_its_weights(tmp_path: Path) -> None:
    with as_file(files("openwafer.cli") / "demo.yaml") as path:
        config = Session(path).config
    model = build_hollow_model(config, expected_vocab_size(config), tmp_path)
    assert config.device_memory is not None
    assert config.device_memory < sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.slow
def test_the_demo_has_room_on_its_device() -> None:
    with as_file(files("openwafer.cli") / "demo.yaml") as path:
        plan = Session(path).plan()
    assert plan.predicted_peak_bytes < plan.device_budget_bytes
