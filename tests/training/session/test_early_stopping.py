"""A run that ends early, and the checkpoint of its lowest held-out loss."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import ValidationPoint, load_run
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    EarlyStoppingConfig,
    EvaluateConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from openwafer.training.session.held_out_losses import HeldOutLosses, losses_so_far
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.store import list_checkpoints, read_checkpoint
from openwafer.training.store.checkpoint import INDEX_NAME
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    quiet,
    saved_arrays,
    tiny_config,
    train_quietly,
)

LATE = ScheduleConfig("constant", {"num_warm_up_steps": 0})


def judged_config(
    data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM, **changes: object
) -> RunConfig:
    """Evaluated after every step, six at most."""
    config = replace(
        tiny_config(data, folder, tier),
        steps=6,
        schedule=LATE,
        evaluate=EvaluateConfig(every=1, batches=2),
        checkpoint=CheckpointConfig(every=100, keep=1, best=True),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def losses_of(folder: Path) -> list[float]:
    found = load_run(folder).validation
    assert found is not None
    return [point.loss for point in found.rows]


@pytest.mark.parametrize(
    ("losses", "ends_after"),
    [
        pytest.param([4.0, 3.0, 2.0, 1.0], None, id="falling"),
        pytest.param([4.0, 4.0, 4.0], 3, id="equal"),
        pytest.param([4.0, 3.95, 3.92], 3, id="by less than it takes"),
        pytest.param([4.0, 3.95, 3.89, 3.88, 3.87], 5, id="by that in all"),
        pytest.param([4.0, float("nan"), float("nan")], 3, id="not a number"),
    ],
)
def test_patience_counts_evaluations_without_a_lower_loss(
    losses: list[float], ends_after: int | None
) -> None:
    found = HeldOutLosses(EarlyStoppingConfig(patience=2, min_delta=0.1))
    spent = []
    for step, loss in enumerate(losses):
        found.add(ValidationPoint(step, loss))
        spent.append(found.is_spent)
    assert spent == [ends_after is not None and n + 1 >= ends_after for n in range(len(losses))]


@pytest.mark.parametrize("tier", [StoreTier.DRAM, case(StoreTier.DISK, by_default=False)])
def test_a_run_ends_when_its_patience_does_and_a_resume_ends_there_too(
    data: TinyData, tmp_path: Path, tier: StoreTier
) -> None:
    # No gain is large enough.
    stopping = EarlyStoppingConfig(patience=2, min_delta=100.0)
    config = judged_config(data, tmp_path, tier, early_stopping=stopping)
    ended = train_quietly(config)
    again = Session(config, console=quiet()).resume()
    assert (ended.steps_done, ended.is_complete) == (3, True)
    assert "2 evaluations" in ended.stopped_early
    assert (again.steps_done, again.stopped_early) == (3, ended.stopped_early)
    assert len(losses_of(ended.folder)) == 3


@pytest.mark.slow
def test_systems_end_early_together_and_keep_one_best_checkpoint(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    stopping = EarlyStoppingConfig(patience=1, min_delta=100.0)
    batch = BatchConfig(size=6, sequence_length=12, micro_batches=3)
    config = judged_config(data, tmp_path, StoreTier.DISK, early_stopping=stopping, batch=batch)
    one = train_quietly(replace(config, name="alone"))
    two = pool.train(replace(config, name="together"), 2)
    assert (two.steps_done, two.stopped_early) == (one.steps_done, one.stopped_early)
    assert not differing(saved_arrays(one), saved_arrays(two))
    assert RunFolder(two.folder).best_checkpoint is not None


@pytest.mark.slow
def test_a_run_that_ended_early_goes_on_as_one_that_did_not(data: TinyData, tmp_path: Path) -> None:
    unbroken = train_quietly(judged_config(data, tmp_path / "unbroken"))
    stopping = EarlyStoppingConfig(patience=1, min_delta=100.0)
    config = judged_config(data, tmp_path / "stopped", early_stopping=stopping)
    train_quietly(config)
    resumed = Session(replace(config, early_stopping=None), console=quiet()).resume()
    assert not differing(saved_arrays(unbroken), saved_arrays(resumed))
    assert losses_of(unbroken.folder) == losses_of(resumed.folder)


def test_the_best_checkpoint_has_the_lowest_loss_and_can_be_read(
    data: TinyData, tmp_path: Path
) -> None:
    config = judged_config(data, tmp_path, optimizer=OptimizerConfig("sgd", learning_rate=40.0))
    result = train_quietly(config)
    losses = losses_of(result.folder)
    best = RunFolder(result.folder).best_checkpoint
    assert best is not None
    assert read_checkpoint(best).step == losses.index(min(losses)) + 1 < len(losses)
    assert list_checkpoints(best.parent) == (best, result.checkpoint)
    assert Session(config, console=quiet()).evaluate(2, "best") == min(losses)


def test_a_run_that_goes_on_knows_the_loss_of_its_best_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    best = folder.checkpoints / "step-2"
    best.mkdir(parents=True)
    (best / INDEX_NAME).touch()
    folder.name_best(best)
    points = [ValidationPoint(step, loss) for step, loss in enumerate((4.0, 3.0, 5.0))]
    assert losses_so_far(folder, points, None).kept == 3.0


def test_a_run_goes_on_beside_a_damaged_best_checkpoint(data: TinyData, tmp_path: Path) -> None:
    rates = OptimizerConfig("sgd", learning_rate=40.0)
    whole = judged_config(data, tmp_path, optimizer=rates, steps=3)
    folder = RunFolder(train_quietly(whole).folder)
    assert folder.best_checkpoint is not None
    (folder.best_checkpoint / INDEX_NAME).write_text("{")
    session = Session(replace(whole, steps=4), console=quiet())
    assert session.resume().steps_done == 4
    with pytest.raises(OpenwaferError, match="checkpoint-broken"):
        session.evaluate(1, "best")


@pytest.mark.slow
def test_an_evaluation_that_a_kill_prevented_is_made_by_the_resumed_run(
    data: TinyData, tmp_path: Path
) -> None:
    config = judged_config(data, tmp_path)
    result = train_quietly(config)
    losses, file = losses_of(result.folder), RunFolder(result.folder).validation
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    Session(config, console=quiet()).resume()
    assert losses_of(result.folder) == losses


@pytest.mark.slow
def test_a_run_without_a_best_checkpoint_says_how_to_keep_one(
    data: TinyData, tmp_path: Path
) -> None:
    result = train_quietly(replace(tiny_config(data, tmp_path), steps=1))
    with pytest.raises(OpenwaferError, match=r"no best checkpoint.*\n?.*checkpoint\.best=true"):
        Session(result.folder, console=quiet(), trusts_code=True).evaluate(1, "best")


def test_a_best_checkpoint_that_cannot_be_named_is_told_as_one_not_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (folder.checkpoints / ".best").mkdir(parents=True)
    with pytest.raises(OpenwaferError, match=r"checkpoint-not-written.*best a link to step-1: "):
        folder.name_best(folder.checkpoints / "step-1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"early_stopping": EarlyStoppingConfig()}, "early_stopping goes by held-out losses"),
        ({"checkpoint": CheckpointConfig(best=True)}, r"checkpoint\.best goes by held-out losses"),
    ],
)
def test_what_follows_held_out_losses_needs_some(
    data: TinyData, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidFieldError, match=words) as raised:
        replace(tiny_config(data, tmp_path), **changes)  # type: ignore[arg-type]
    assert "set evaluate: {every: 100}" in str(raised.value.help)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"patience": 0}, "expected above 0, found 0"), ({"min_delta": -1.0}, "at least 0, found -1")],
)
def test_patience_and_min_delta_have_their_least_values(given: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidFieldError, match=words):
        EarlyStoppingConfig(**given)
