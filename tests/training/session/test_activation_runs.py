"""Runs that skip zeros of activations, beside the plain loop and beside each other."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import UserModule, build
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig, Session, load_config
from openwafer.training.session.config_sections import (
    BatchConfig,
    OptimizerConfig,
    Precision,
    ScheduleConfig,
    StreamingConfig,
    Weights,
)
from openwafer.training.sparsity.activation_linear import ActivationChoice
from openwafer.training.sparsity.activations import FEWEST_TOKENS
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)

HERE = "tests.training.session.rectified_model"
STEPS = 6


def skipping(data: TinyData, folder: Path) -> RunConfig:
    """Two micro-batches of more than enough tokens, with dropout, clipped."""
    size = 2 * (FEWEST_TOKENS // 12 + 3)
    return replace(
        tiny_config(data, folder),
        steps=STEPS,
        model=UserModule(f"{HERE}:rectified"),
        batch=BatchConfig(size=size, sequence_length=12, micro_batches=2),
        optimizer=OptimizerConfig("sgd", 0.5, options={"momentum": 0.9}),
        schedule=ScheduleConfig("constant", {"num_warm_up_steps": 1}),
        activation_sparsity=ActivationChoice.AUTO,
    )


STREAMED = StreamingConfig(device="cpu", mode=Mode.STREAMED, activations=Activations.KEEP)
WAYS: dict[str, StreamingConfig] = {
    "resident": StreamingConfig(device="cpu", mode=Mode.RESIDENT, store=StoreTier.DRAM),
    "recomputed": replace(STREAMED, activations=Activations.RECOMPUTE, store=StoreTier.DRAM),
    "offloaded": replace(STREAMED, activations=Activations.OFFLOAD, store=StoreTier.DRAM),
    "from disk": replace(STREAMED, store=StoreTier.DISK),
}


@pytest.fixture(scope="module")
def streamed_and_told(
    data: TinyData, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Everything saved by a run that streams from DRAM and keeps activations, and its lines.

    Above the memory that its plan foretells a device of a run refuses to hold anything.
    """
    config, told = skipping(data, tmp_path_factory.mktemp("streamed")), io.StringIO()
    peak_bytes = Session(config, console=quiet()).plan().predicted_peak_bytes
    config = replace(config, device_memory=peak_bytes)
    result = Session(config, console=Console(file=told, width=200)).train()
    return dict(saved_arrays(result)), told.getvalue().splitlines()


@pytest.fixture
def streamed(
    streamed_and_told: tuple[dict[str, torch.Tensor], list[str]],
) -> dict[str, torch.Tensor]:
    return streamed_and_told[0]


def test_a_run_is_as_near_to_the_plain_loop_as_sums_in_another_order_are(
    data: TinyData, tmp_path: Path, streamed: dict[str, torch.Tensor]
) -> None:
    """A thousandth of how far training has moved a weight; sums differ in their seventh digit.

    Of biases of keys no more is left than rounding, which softmax does not see: 1e-9 for them.
    """
    config = skipping(data, tmp_path)
    start = build(config.model, config.seed).state_dict()
    expected = plain_loop(config)
    for name in expected.keys() & streamed.keys():
        moved = (expected[name] - start[name]).abs().max()
        assert (streamed[name] - expected[name]).abs().max() <= 1e-3 * moved + 1e-9, name


# The run that stops has recomputed by then, and is offloaded to disk from there on.
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_however_it_streams_a_run_has_the_same_bits(
    data: TinyData, tmp_path: Path, streamed: dict[str, torch.Tensor], way: str
) -> None:
    config = replace(skipping(data, tmp_path), streaming=WAYS[way])
    assert differing(saved_arrays(train_quietly(config)), streamed) == []


@pytest.mark.slow
def test_a_run_that_stopped_goes_on_as_the_unbroken_one(
    data: TinyData, tmp_path: Path, streamed: dict[str, torch.Tensor]
) -> None:
    offloaded = replace(WAYS["offloaded"], store=StoreTier.DISK)
    config = replace(skipping(data, tmp_path), streaming=offloaded)
    train_quietly(replace(config, steps=4, streaming=WAYS["recomputed"]))
    assert differing(saved_arrays(Session(config, console=quiet()).resume()), streamed) == []


@pytest.mark.slow
def test_without_many_zeros_a_run_has_the_bits_of_the_plain_loop(
    data: TinyData, tmp_path: Path
) -> None:
    few = BatchConfig(size=6, sequence_length=12, micro_batches=2)
    config = replace(skipping(data, tmp_path), batch=few, steps=4)
    found, expected = saved_parameters(train_quietly(config)), plain_loop(config)
    assert differing(found, {name: expected[name] for name in found}) == []


def test_a_run_tells_what_it_has_skipped(
    streamed_and_told: tuple[dict[str, torch.Tensor], list[str]],
) -> None:
    lines = [line for line in streamed_and_told[1] if line.startswith("inputs of")]
    assert [line.split(":")[0].rpartition(".")[2] for line in lines] == ["fc2", "fc2"]
    for line in lines:
        zeros, skipped = (float(part.split("%")[0].split()[-1]) for part in line.split(",")[-2:])
        assert 75 < zeros == skipped <= 100


@pytest.mark.parametrize("written", ["auto", ["*.fc2"]])
def test_the_key_of_a_config_is_read(tmp_path: Path, written: object) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"steps: 1\nactivation_sparsity: {written}\ndata: {{source: {{kind: text, paths: [a]}}}}\n"
    )
    expected = ActivationChoice.AUTO if written == "auto" else ("*.fc2",)
    assert load_config(path).activation_sparsity == expected


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such module": ({"activation_sparsity": ("*.fc3",)}, r"'\*.fc3' matches no plain linear"),
    "another input": ({"activation_sparsity": ("*.fc1",)}, "fc1', which comes from .*LayerNorm"),
    "another function": ({"model": UserModule(f"{HERE}:without_relu")}, "finds no linear module"),
    "another module": ({"model": UserModule(f"{HERE}:without_linears")}, "finds no linear module"),
    "sparse weights": (
        {"activation_sparsity": ("*.fc2",), "sparsity": 0.5},
        "matches no plain linear module of a dense weight",
    ),
}


@pytest.mark.parametrize(("change", "told"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_skipped_is_refused(
    data: TinyData, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        Session(replace(skipping(data, tmp_path), **change), console=quiet()).plan()


@pytest.mark.parametrize("change", [{"precision": Precision.BF16}, {"weights": Weights.BF16}])
def test_other_formats_are_refused(data: TinyData, tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidFieldError, match="zeros are skipped in fp32"):
        replace(skipping(data, tmp_path), **change)
