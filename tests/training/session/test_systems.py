"""Runs on several systems against the plain loop on one, bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.ordered_sums import Reduction
from openwafer.training.methods.mup import Parametrization
from openwafer.training.metrics import METRICS_FORMAT, read_lines
from openwafer.training.models import UserModule
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig, Sampling, Session, TrainResult, Weights
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    EvaluateConfig,
    Precision,
    StreamingConfig,
)
from openwafer.training.sparsity.masks.schedules import Cycling, EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup
from openwafer.training.sparsity.products import Products
from openwafer.training.step import LossScaling
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.tables import case
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.mixture_runs import MIXTRAL, mixture_config
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS

TIED = replace(GPT, has_tied_embeddings=True)
COUNTING = UserModule("tests.training.session.tiny_model:CountingModel")
# What tells which tensor comes.
MESSAGES_BYTES = 4096
RIGL = SparsityGroup(0.75, AlgorithmName.RIGL, update=EverySteps(2))
BATCH = BatchConfig(size=10, sequence_length=12, micro_batches=5)


def tied_config(data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM) -> RunConfig:
    """A clipped run with dropout and tied embeddings, whose micro-batches deal out unevenly.

    The first system has the store; for shares of it, see ``test_shared_stores``.
    """
    config = replace(tiny_config(data, folder, tier), model=TIED, batch=BATCH, clip_norm=0.1)
    return replace(config, store_systems=StoreSystems.FIRST)


def differing_from_loop(result: TrainResult, config: RunConfig) -> list[str]:
    """Parameters that the plain loop has otherwise; it knows a tied one by two names."""
    saved, loop = saved_parameters(result), plain_loop(config)
    return differing(saved, {name: loop[name] for name in saved})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "tier"),
    [
        case(2, StoreTier.DRAM, by_default=False),
        (2, StoreTier.DISK),
        case(3, StoreTier.DRAM, by_default=False),
        case(3, StoreTier.DISK, by_default=False),
        case(4, StoreTier.DRAM, by_default=False),
        case(4, StoreTier.DISK, by_default=False),
    ],
)
def test_a_run_on_several_systems_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, tier: StoreTier, size: int
) -> None:
    config = tied_config(data, tmp_path, tier)
    assert differing_from_loop(pool.train(config, size), config) == []


@pytest.mark.slow
def test_updates_on_push_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = replace(tied_config(data, tmp_path, StoreTier.DISK), clip_norm=None)
    assert differing_from_loop(pool.train(config, 2), config) == []


def alone_and_together(
    config: RunConfig, pool: FollowerPool, size: int
) -> tuple[TrainResult, TrainResult]:
    alone = train_quietly(replace(config, name="alone"))
    return alone, pool.train(replace(config, name="together"), size)


@pytest.mark.slow
@pytest.mark.parametrize("weights", list(Weights))
def test_bf16_equals_one_system(
    data: TinyData, tmp_path: Path, pool: FollowerPool, weights: Weights
) -> None:
    config = replace(
        tied_config(data, tmp_path, StoreTier.DISK), weights=weights, precision=Precision.BF16
    )
    alone, together = alone_and_together(config, pool, 3)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []


@pytest.mark.slow
def test_mup_equals_one_system(data: TinyData, tmp_path: Path, pool: FollowerPool) -> None:
    config = replace(
        tied_config(data, tmp_path),
        parametrization=Parametrization.MUP,
        base={"hidden_size": 8, "mlp_size": 12, "num_heads": 2},
    )
    alone, together = alone_and_together(config, pool, 2)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []


@pytest.mark.slow
def test_a_mixture_of_experts_equals_one_system(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = replace(mixture_config(data, tmp_path), batch=BATCH)
    alone, together = alone_and_together(config, pool, 2)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []


SPARSE = {
    "set": SparsityGroup(0.75, AlgorithmName.SET, update=EverySteps(2)),
    "gmp": SparsityGroup(Cycling((0.5, 0.6, 0.7)), AlgorithmName.GMP, update=EverySteps(1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SPARSE)
def test_sparse_weights_equal_one_system(
    data: TinyData, tmp_path: Path, pool: FollowerPool, algorithm: str
) -> None:
    config = replace(tied_config(data, tmp_path), sparsity=SPARSE[algorithm])
    config = replace(config, sparse_products=Products.SPARSE)
    alone, together = alone_and_together(config, pool, 2)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []


@pytest.mark.slow
def test_frozen_weights_equal_one_system(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = replace(tied_config(data, tmp_path), model=GPT)
    frozen = ("embedding.*", "layers.1.*")
    config = replace(config, optimizer=replace(config.optimizer, frozen=frozen))
    alone, together = alone_and_together(config, pool, 2)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []


@pytest.mark.slow
def test_a_step_that_overflows_is_skipped_on_all_systems(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    scaling = LossScaling(initial_scale=1e38, backoff_factor=1e-36)
    config = replace(
        tiny_config(data, tmp_path), batch=BATCH, precision=Precision.FP16, loss_scale=scaling
    )
    assert differing_from_loop(pool.train(config, 2), config) == []


@pytest.fixture(scope="module")
def uneven(
    data: TinyData, tmp_path_factory: pytest.TempPathFactory, pool: FollowerPool
) -> tuple[TrainResult, TrainResult]:
    """A run whose micro-batches have more and fewer targets, on one system and on three."""
    config = tied_config(data, tmp_path_factory.mktemp("uneven"))
    config = replace(config, data=replace(config.data, cross_documents=False))
    return alone_and_together(config, pool, 3)


def test_micro_batches_count_by_their_targets(uneven: tuple[TrainResult, TrainResult]) -> None:
    alone, together = uneven
    assert differing(saved_arrays(alone), saved_arrays(together)) == []
    assert together.loss == alone.loss


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
def test_a_run_goes_on_with_another_number_of_systems(
    data: TinyData, tmp_path: Path, pool: FollowerPool, tier: StoreTier
) -> None:
    config = replace(
        tied_config(data, tmp_path, tier),
        checkpoint=CheckpointConfig(every=1, keep=9),
        evaluate=EvaluateConfig(every=1, batches=1),
    )
    unbroken = saved_arrays(train_quietly(replace(config, name="alone")))
    whole = pool.train(replace(config, name="together"), 3)
    first = whole.folder / "checkpoints" / "step-00000001"
    with pool.systems(2) as systems:
        together = Session(whole.folder, console=quiet(), systems=systems).resume(first)
    assert differing(saved_arrays(together), unbroken) == []
    alone = Session(whole.folder, ["systems=1"], console=quiet()).resume(first)
    assert differing(saved_arrays(alone), unbroken) == []


@pytest.mark.slow
def test_a_run_of_several_systems_is_read_by_one(uneven: tuple[TrainResult, TrainResult]) -> None:
    first, second = (Session(one.folder, console=quiet()) for one in uneven)
    assert second.config.systems == 3
    assert first.evaluate(1) == second.evaluate(1)


@pytest.mark.slow
def test_texts_of_a_run_of_several_systems_are_those_of_one(
    uneven: tuple[TrainResult, TrainResult],
) -> None:
    first, second = (Session(one.folder, console=quiet()) for one in uneven)
    few = Sampling(max_new_tokens=8)
    assert first.generate("2 squared", few) == second.generate("2 squared", few)


# Two systems keep to it in test_covering_runs.
@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [3, 5])
def test_systems_keep_to_the_memory_that_their_plan_foretells(
    micro_batches: int, data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    # Of few tokens, so that gradients are a large part of what a device holds.
    batch = BatchConfig(size=micro_batches, sequence_length=2, micro_batches=micro_batches)
    config = replace(tied_config(data, tmp_path), batch=batch)
    peak_bytes = Session(replace(config, systems=3), console=quiet()).plan().predicted_peak_bytes
    # Above its budget a device of a run refuses to hold anything.
    assert pool.train(replace(config, device_memory=peak_bytes), 3).is_complete


def test_what_passes_between_systems_is_what_their_shares_take(
    uneven: tuple[TrainResult, TrainResult],
) -> None:
    _, result = uneven
    rows = read_lines(result.folder / "metrics.jsonl", METRICS_FORMAT).rows
    parameters = saved_parameters(result).values()
    num_bytes = sum(parameter.nbytes for parameter in parameters)
    for row in rows:
        assert row.system_received_bytes is not None
        first, second, last = row.system_received_bytes
        assert row.push_bytes == num_bytes
        # A sum comes to each system but the first, and from the last one to the store.
        assert [one - num_bytes for one in (first, second, last)] == pytest.approx(
            [0, row.fetch_bytes, row.fetch_bytes], abs=MESSAGES_BYTES
        )


@pytest.mark.parametrize("size", [2, case(3, by_default=False)])
def test_a_fast_reduction_is_near_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int
) -> None:
    config = replace(tied_config(data, tmp_path), reduction=Reduction.FAST)
    saved, loop = saved_parameters(pool.train(config, size)), plain_loop(config)
    for name, found in saved.items():
        torch.testing.assert_close(found, loop[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_all_systems(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = tied_config(data, tmp_path)
    optimizer = replace(config.optimizer, learning_rate=1e30)
    with pytest.raises(OpenwaferError, match="loss-not-finite"):
        pool.train(replace(config, optimizer=optimizer, clip_norm=None), 2)


def test_more_systems_than_micro_batches_are_refused(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = replace(tied_config(data, tmp_path), batch=replace(BATCH, micro_batches=2))
    config = replace(config, data=replace(config.data, folder=tmp_path / "data"))
    with pytest.raises(OpenwaferError, match="2 micro-batches, and there are 3 systems"):
        pool.train(config, 3)
    # It is known before data are prepared.
    assert not (tmp_path / "data").exists()


def test_a_config_of_several_systems_does_not_run_alone(data: TinyData, tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match="systems is 2, and this process is alone"):
        train_quietly(replace(tied_config(data, tmp_path), systems=2))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"streaming": StreamingConfig(mode=Mode.RESIDENT)}, "systems-resident"),
        ({"sparsity": RIGL}, "systems-rigl"),
        ({"model": COUNTING}, "systems-share-state"),
        ({"model": COUNTING, "batch": replace(BATCH, micro_batches=2)}, "systems-share-state"),
    ],
)
def test_what_several_systems_cannot_do_is_refused(
    data: TinyData, tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    config = replace(tied_config(data, tmp_path), systems=2, **changes)
    with pytest.raises(OpenwaferError, match=code):
        Session(config, console=quiet()).plan()


NUM_LONG_STEPS = 20
CASES: dict[str, dict[str, Any]] = {
    "clipped, tied, with dropout": {},
    "updated as gradients come": {"clip_norm": None},
    "untied": {"model": GPT},
    "four micro-batches": {"batch": BatchConfig(size=8, sequence_length=12, micro_batches=4)},
    "mixture": {"model": MIXTRAL},
    "bf16 autocast": {"precision": Precision.BF16},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_twenty_steps_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int, tier: StoreTier, case: str
) -> None:
    config = replace(tied_config(data, tmp_path, tier), steps=NUM_LONG_STEPS, **CASES[case])
    assert differing_from_loop(pool.train(config, size), config) == []


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_twenty_steps_of_bf16_weights_equal_one_system(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int, tier: StoreTier
) -> None:
    config = replace(tied_config(data, tmp_path, tier), steps=NUM_LONG_STEPS, weights=Weights.BF16)
    alone, together = alone_and_together(config, pool, size)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []
