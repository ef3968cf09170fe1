"""Pruning that rewinds: each round goes back to the weights of one step, dense ones with them."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import build
from openwafer.training.models.build import with_vocab_size
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import CheckpointConfig, Precision, Weights
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.sparsity.masks.schedules import EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup
from openwafer.training.store import list_checkpoints
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.plain_sparse_loop import PlainSparsity, plain_sparse_loop
from tests.training.session.test_sparse_runs import (
    EVERY_2,
    TIERS,
    UPDATES,
    exported,
    named_as_exported,
    sparse_config,
    streamed,
)
from tests.training.session.tiny_runs import TinyData, differing, quiet

# Two fifths of what is left go in each round, until 0.75 is reached in the third, at step 6.
ROUNDS = {0: 0.0, 2: 0.4, 4: 1 - 0.6**2, 6: 0.75}


def pruning(rewind_step: int, update: EverySteps = EVERY_2) -> SparsityGroup:
    return SparsityGroup(
        0.75, AlgorithmName.IMP, update=update, prune_fraction=0.4, rewind_step=rewind_step
    )


def rewound_config(data: TinyData, folder: Path, rewind_step: int, tier: StoreTier) -> RunConfig:
    config = streamed(sparse_config(data, folder, pruning(rewind_step)), tier)
    return replace(config, checkpoint=CheckpointConfig(every=3, keep=10))


def trained(config: RunConfig) -> Session:
    session = Session(config, console=quiet())
    session.train()
    return session


# Runs that go on rewind to step 1 from disk, between steps that are undone, and masters to step 0.
@pytest.mark.parametrize(
    ("rewind_step", "tier"),
    [
        case(step, tier, by_default=(step, name) == (1, "resident"), id=f"{step}-{name}")
        for step, (name, tier) in product((0, 1), TIERS.items())
    ],
)
def test_a_run_that_rewinds_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, rewind_step: int, tier: StoreTier | None
) -> None:
    config = streamed(sparse_config(data, tmp_path, pruning(rewind_step)), tier)
    found = exported(trained(config), tmp_path / "out")
    plain = PlainSparsity("imp", ROUNDS, UPDATES, rewind_step)
    assert differing(found, named_as_exported(plain_sparse_loop(config, plain))) == []


@pytest.mark.slow
def test_a_run_that_rewinds_between_steps_that_are_undone_equals_the_plain_loop(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(rewound_config(data, tmp_path, 0, StoreTier.DISK), clip_norm=1.0)
    found = exported(trained(config), tmp_path / "out")
    plain = PlainSparsity("imp", ROUNDS, UPDATES, 0)
    assert differing(found, named_as_exported(plain_sparse_loop(config, plain))) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tier", "num_before"),
    [
        case(tier, before, by_default=before == 5)
        for tier, before in ((StoreTier.DRAM, 1), (StoreTier.DISK, 2), (StoreTier.DISK, 5))
    ],
)
def test_a_run_that_rewinds_and_goes_on_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, tier: StoreTier, num_before: int
) -> None:
    config = replace(rewound_config(data, tmp_path, 1, tier), clip_norm=1.0)
    trained(replace(config, steps=num_before))
    broken = Session(config, console=quiet())
    broken.resume()
    found = exported(broken, tmp_path / "out")
    plain = PlainSparsity("imp", ROUNDS, UPDATES, 1)
    assert differing(found, named_as_exported(plain_sparse_loop(config, plain))) == []


@pytest.mark.slow
def test_an_older_checkpoint_than_the_step_that_is_kept_keeps_it_again(
    data: TinyData, tmp_path: Path
) -> None:
    config = rewound_config(data, tmp_path, 1, StoreTier.DRAM)
    checkpoint = CheckpointConfig(every=1, keep=10)
    config = replace(config, sparsity=pruning(2, EverySteps(3)), checkpoint=checkpoint)
    session = trained(config)
    expected = exported(session, tmp_path / "whole-out")
    [kept] = list_checkpoints(RunFolder(config.path).rewind)
    for shard in kept.iterdir():
        shard.unlink()
    session.resume(list_checkpoints(RunFolder(config.path).checkpoints)[0])
    assert differing(exported(session, tmp_path / "again-out"), expected) == []


def test_a_run_past_the_step_needs_what_was_kept(data: TinyData, tmp_path: Path) -> None:
    config = streamed(sparse_config(data, tmp_path, pruning(1)), None)
    trained(replace(config, steps=2))
    other = replace(config, sparsity=pruning(0))
    with pytest.raises(OpenwaferError, match=r"has not kept that step's weights: .*step-00000000"):
        Session(other, console=quiet()).resume()


@pytest.mark.slow
def test_masters_go_back_with_their_weights(data: TinyData, tmp_path: Path) -> None:
    config = rewound_config(data, tmp_path, 0, StoreTier.DRAM)
    config = replace(config, weights=Weights.BF16, precision=Precision.BF16, steps=4)
    sparse = exported(trained(config), tmp_path / "out")
    begun = build(with_vocab_size(config.model, 280), config.seed).state_dict()
    found = sparse["model.layers.0.mlp.up_proj.weight"]
    survivors = found != 0
    assert 0.6 < 1 - survivors.float().mean() < 0.7
    # Behind the last update weights are those of step 0, up to what bf16 rounds.
    first = begun["layers.0.mlp.up.weight"].to(torch.bfloat16)
    assert torch.equal(found[survivors], first[survivors])


MIXED = (
    replace(pruning(0), param_filter="*.mlp.*"),
    SparsityGroup(0.5, param_filter="*.attention.*"),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sparsity": MIXED}, r"mlp.* to go back .* but '.*attention.*' is sparse in another way"),
        ({"ema": 0.9}, r"beside ema: 0\.9"),
    ],
)
def test_what_cannot_go_back_together_is_refused(
    data: TinyData, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    config = rewound_config(data, tmp_path, 0, StoreTier.DRAM)
    with pytest.raises(OpenwaferError, match=message):
        trained(replace(config, **change))  # type: ignore[arg-type]
