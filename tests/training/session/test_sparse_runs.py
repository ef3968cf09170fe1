"""A run with sparse weights gives the bits of a plain loop with dense ones that are masked."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import UserModule
from openwafer.training.models.export import to_hugging_face
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import (
    BatchConfig,
    GroupConfig,
    OptimizerConfig,
    Precision,
    ScheduleConfig,
    Weights,
)
from openwafer.training.sparsity.masks.schedules import AtSteps, Cycling, EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup, WrittenSparsity
from openwafer.training.sparsity.products import Products
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.plain_sparse_loop import PlainSparsity, plain_sparse_loop
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    quiet,
    saved_arrays,
    tiny_config,
)

STEPS = 8
ROUTED = UserModule("tests.training.session.tiny_model:RoutedModel")
EVERY_2 = EverySteps(2)
FALLING = {0: 0.5, 2: 0.6, 4: 0.7, 6: 0.8, 8: 0.5}
UPDATES = frozenset((2, 4, 6, 8))


def group(name: str) -> SparsityGroup:
    sparsity = Cycling((0.5, 0.6, 0.7, 0.8)) if name == "gmp" else 0.75
    return SparsityGroup(sparsity, AlgorithmName(name), update=EVERY_2)


ALGORITHMS: dict[str, tuple[WrittenSparsity, PlainSparsity]] = {
    "static": (0.75, PlainSparsity("static", {0: 0.75})),
    "set": (group("set"), PlainSparsity("set", {0: 0.75}, UPDATES)),
    "rigl": (group("rigl"), PlainSparsity("rigl", {0: 0.75}, UPDATES)),
    "gmp": (group("gmp"), PlainSparsity("gmp", FALLING, UPDATES)),
}
TO_DENSE = (
    SparsityGroup(Cycling((0.75, 0.0)), AlgorithmName.GMP, update=AtSteps((4,))),
    PlainSparsity("gmp", {0: 0.75, 4: 0.0}, frozenset((4,))),
)
BEHIND_EVERY_STEP = (
    replace(group("rigl"), update=EverySteps(1)),
    PlainSparsity("rigl", {0: 0.75}, frozenset(range(1, STEPS + 1))),
)


def sparse_config(data: TinyData, folder: Path, sparsity: WrittenSparsity) -> RunConfig:
    """Unfused, since the fused kernel rounds a tensor's last elements in a way of their own."""
    return replace(
        tiny_config(data, folder),
        steps=STEPS,
        model=GPT,
        sparsity=sparsity,
        sparse_products=Products.DENSE,
        clip_norm=None,
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=2),
        optimizer=OptimizerConfig(learning_rate=1e-2, options={"fused": False}),
        schedule=ScheduleConfig("constant", {"num_warm_up_steps": 1}),
    )


def streamed(config: RunConfig, tier: StoreTier | None) -> RunConfig:
    """The run on a tier of the store, or resident."""
    mode, store = (Mode.RESIDENT, StoreTier.DRAM) if tier is None else (Mode.STREAMED, tier)
    return replace(config, streaming=replace(config.streaming, mode=mode, store=store))


def exported(session: Session, folder: Path) -> Mapping[str, torch.Tensor]:
    """Weights as others read them."""
    return load_file(session.export(folder) / "model.safetensors")


def named_as_exported(weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    names = to_hugging_face(replace(GPT, vocab_size=280), weights).names
    return {names[name]: weight for name, weight in weights.items()}


SPARSE_BY_ADAMW = GroupConfig(("layers.*.weight",), "adamw", 1e-3)
CHANGES: dict[str, dict[str, Any]] = {
    "clipped": {"clip_norm": 1.0},
    "bf16": {"weights": Weights.BF16, "precision": Precision.BF16},
    "average": {"ema": 0.9},
    "lion": {"optimizer": OptimizerConfig("lion", 1e-3)},
    "muon beside": {"optimizer": OptimizerConfig("muon", 1e-3, groups=(SPARSE_BY_ADAMW,))},
}
TIERS = {"resident": None, "dram": StoreTier.DRAM, "disk": StoreTier.DISK}


# Schedules that go to their ends are of the other two algorithms, and test_covering_runs holds
# streamed runs to resident ones.
@pytest.mark.parametrize(
    ("algorithm", "tier"),
    [
        case(
            ALGORITHMS[name],
            TIERS[tier],
            by_default=f"{name}-{tier}" == "set-resident",
            id=f"{name}-{tier}",
        )
        for name, tier in product(ALGORITHMS, TIERS)
    ],
)
def test_a_sparse_run_equals_the_plain_loop_with_masks(
    data: TinyData,
    tmp_path: Path,
    algorithm: tuple[WrittenSparsity, PlainSparsity],
    tier: StoreTier | None,
) -> None:
    written, plain = algorithm
    config = streamed(sparse_config(data, tmp_path, written), tier)
    session = Session(config, console=quiet())
    session.train()
    expected = named_as_exported(plain_sparse_loop(config, plain))
    assert differing(exported(session, tmp_path / "out"), expected) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "plain"),
    [
        case(*TO_DENSE, by_default=True, id="dense from the middle on"),
        # Of it is the run that stops.
        case(*BEHIND_EVERY_STEP, by_default=False, id="rigl behind every step"),
    ],
)
def test_a_schedule_may_go_to_its_ends(
    data: TinyData, tmp_path: Path, written: SparsityGroup, plain: PlainSparsity
) -> None:
    config = streamed(sparse_config(data, tmp_path, written), StoreTier.DRAM)
    session = Session(config, console=quiet())
    session.train()
    expected = named_as_exported(plain_sparse_loop(config, plain))
    assert differing(exported(session, tmp_path / "out"), expected) == []


@pytest.mark.slow
def test_a_sparse_run_that_stopped_and_went_on_equals_the_plain_loop_with_masks(
    data: TinyData, tmp_path: Path
) -> None:
    written, plain = BEHIND_EVERY_STEP
    config = streamed(sparse_config(data, tmp_path, written), StoreTier.DISK)
    Session(replace(config, steps=3), console=quiet()).train()
    broken = Session(config, console=quiet())
    broken.resume()
    expected = named_as_exported(plain_sparse_loop(config, plain))
    assert differing(exported(broken, tmp_path / "out"), expected) == []


@pytest.mark.parametrize("algorithm", [case("static", by_default=False), "rigl"])
def test_a_sparse_model_that_reads_values_trains(
    data: TinyData, tmp_path: Path, algorithm: str
) -> None:
    config = sparse_config(data, tmp_path, ALGORITHMS[algorithm][0])
    session = Session(replace(config, model=ROUTED, steps=3), console=quiet())
    assert session.train().is_complete


@pytest.mark.slow
def test_the_store_keeps_what_the_kept_weights_cost(data: TinyData, tmp_path: Path) -> None:
    config = replace(sparse_config(data, tmp_path, 0.9), steps=1)
    arrays = saved_arrays(Session(config, console=quiet()).train())
    name = "layers.0.mlp.up.weight"
    num_kept = int(0.1 * GPT.hidden_size * GPT.mlp_units)
    assert {arrays[key].numel() for key in arrays if key.endswith(f"/{name}")} == {num_kept}
    assert arrays[name].numel() == num_kept
    assert arrays[f"{name}_pattern"].dtype is torch.uint8


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [case(CHANGES[name], by_default=name == "muon beside", id=name) for name in CHANGES],
)
def test_sparse_weights_go_with_what_else_a_run_may_have(
    data: TinyData, tmp_path: Path, change: dict[str, Any]
) -> None:
    config = replace(sparse_config(data, tmp_path, group("rigl")), **change)
    session = Session(config, console=quiet())
    session.train()
    found = exported(session, tmp_path / "out")
    hidden = [t for name, t in found.items() if t.ndim == 2 and ".layers." in name]
    # What grew behind the last step is still zero.
    shares = [1 - int(t.count_nonzero()) / t.numel() for t in hidden]
    assert all(0.75 <= share < 0.75 + 0.3 * 0.25 for share in shares)


@pytest.mark.parametrize("name", ["muon", "adafactor"])
def test_an_optimizer_of_whole_matrices_is_refused_for_sparse_ones(
    data: TinyData, tmp_path: Path, name: str
) -> None:
    config = replace(sparse_config(data, tmp_path, 0.75), optimizer=OptimizerConfig(name, 1e-3))
    with pytest.raises(
        OpenwaferError, match=rf"^error\[sparse-optimizer\]: {name}.*'layers"
    ) as found:
        Session(config, console=quiet()).plan()
    assert "name: adamw" in (found.value.diagnostics[0].help or "")
