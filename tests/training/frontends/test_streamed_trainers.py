"""A Trainer of transformers that streams leaves the bits of one that does not."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate", reason="the Trainer of transformers asks for accelerate")

from transformers import (
    EarlyStoppingCallback,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
)

from openwafer.training.frontends.hugging_face import StreamedTrainer
from openwafer.training.plan_record import Mode
from tests import forked
from tests.training.frontends.trainers import (
    STREAM,
    TIMES,
    Build,
    Left,
    apart,
    arguments,
    build_gpt2,
    by_callback,
    left_by,
    make,
    on_disk,
    plain,
    streamed,
    trained,
)

pytestmark = pytest.mark.slow
WAYS = {"trainer": streamed, "callback": by_callback, "disk": on_disk}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What the plain Trainer leaves."""
    return trained(plain(arguments(tmp_path_factory.mktemp("plain"))))


@pytest.mark.parametrize("build", WAYS.values(), ids=WAYS)
def test_a_streamed_trainer_leaves_the_bits_of_a_plain_one(
    build: Build, expected: Left, tmp_path: Path
) -> None:
    trainer = build(arguments(tmp_path))
    assert apart(trained(trainer), expected) == []


def test_the_weights_of_a_streamed_trainer_are_in_a_store(tmp_path: Path) -> None:
    trainer = streamed(arguments(tmp_path, max_steps=1))
    trainer.train()
    assert trainer.streamed.plan.mode is Mode.STREAMED


@pytest.mark.parametrize("build", WAYS.values(), ids=WAYS)
def test_a_checkpoint_is_gone_on_from_exactly(build: Build, expected: Left, tmp_path: Path) -> None:
    build(arguments(tmp_path)).train()
    rest = trained(build(arguments(tmp_path)), tmp_path / "checkpoint-2")
    # The mean loss counts the steps of this process.
    assert apart(rest._replace(told=rest.told[:-1] + expected.told[-1:]), expected) == []


class Kill(TrainerCallback):  # type: ignore[misc]
    """Ends the process in the middle of a step."""

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(folder: Path) -> None:
    on_disk(arguments(folder), callbacks=[Kill()]).train()


def test_a_killed_trainer_goes_on_from_its_last_checkpoint(expected: Left, tmp_path: Path) -> None:
    process = forked.start(train_until_killed, tmp_path)
    assert forked.exit_codes([process]) == [-signal.SIGKILL]
    rest = trained(on_disk(arguments(tmp_path)), tmp_path / "checkpoint-2")
    assert apart(rest._replace(told=rest.told[:-1] + expected.told[-1:]), expected) == []


def early(build: Build, folder: Path) -> Left:
    stop = EarlyStoppingCallback(early_stopping_patience=1)
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_accuracy"}
    args = arguments(folder, max_steps=12, learning_rate=0.3, **best)
    trainer = build(args, callbacks=[stop])
    trainer.train()
    assert trainer.state.global_step < 12
    return left_by(trainer)


def test_early_stopping_and_the_best_model_are_as_ever(tmp_path: Path) -> None:
    assert apart(early(streamed, tmp_path / "a"), early(plain, tmp_path / "b")) == []


class Exports(TrainerCallback):  # type: ignore[misc]
    """A user's callback that saves the model after a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        if state.global_step == 3:
            model.save_pretrained(self.folder)


def exported(build: Build, folder: Path) -> dict[str, torch.Tensor]:
    build(arguments(folder), callbacks=[Exports(folder / "third")]).train()
    saved: dict[str, torch.Tensor] = GPT2LMHeadModel.from_pretrained(folder / "third").state_dict()
    return saved


def test_a_model_is_saved_while_its_weights_are_in_the_store(tmp_path: Path) -> None:
    found, expected = exported(streamed, tmp_path / "a"), exported(plain, tmp_path / "b")
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def with_more_tokens(build: Build, folder: Path) -> Left:
    model = build_gpt2()
    model.resize_token_embeddings(70)
    return trained(build(arguments(folder), model=model))


def test_embeddings_are_resized_before_they_stream(tmp_path: Path) -> None:
    found = with_more_tokens(streamed, tmp_path / "a")
    assert apart(found, with_more_tokens(plain, tmp_path / "b")) == []


def evaluated_and_trained_again(build: Build, folder: Path) -> tuple[Left, Any]:
    trainer = build(arguments(folder))
    trainer.evaluate()
    trainer.train()
    predicted = trainer.predict(trainer.eval_dataset)
    trainer.train()
    return left_by(trainer), predicted.predictions.tolist()


def test_a_trainer_evaluates_predicts_and_trains_again(tmp_path: Path) -> None:
    found, found_logits = evaluated_and_trained_again(streamed, tmp_path / "a")
    expected, logits = evaluated_and_trained_again(plain, tmp_path / "b")
    assert apart(found, expected) == []
    assert found_logits == logits


OTHERS: dict[str, dict[str, Any]] = {
    "adafactor": {"optim": "adafactor"},
    "autocast": {"bf16": True},
    "no clipping": {"max_grad_norm": 0.0},
    "checkpointing": {"activation_checkpointing": True},
    "noise": {"neftune_noise_alpha": 5.0},
    "smoothing": {"label_smoothing_factor": 0.1},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "warmup_steps": 0},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_other_arguments_are_as_ever(others: dict[str, Any], tmp_path: Path) -> None:
    found = trained(streamed(arguments(tmp_path / "a", **others)))
    assert apart(found, trained(plain(arguments(tmp_path / "b", **others)))) == []


class Weighted(Trainer):  # type: ignore[misc]
    """A user's trainer with a loss of its own."""

    def compute_loss(self, model: Any, inputs: Any, **others: Any) -> Any:
        found = super().compute_loss(model, inputs, **others)
        return (0.5 * found[0], found[1]) if isinstance(found, tuple) else 0.5 * found


class StreamedWeighted(StreamedTrainer, Weighted):
    """As in the guide."""


def weighted_streamed(**given: Any) -> Trainer:
    return StreamedWeighted(**STREAM, **given)


def test_a_subclass_of_both_streams_the_trainer_of_a_user(tmp_path: Path) -> None:
    found = trained(make(weighted_streamed, arguments(tmp_path / "a")))
    assert apart(found, trained(make(Weighted, arguments(tmp_path / "b")))) == []


def scalars(build: Build, folder: Path) -> dict[str, list[float]]:
    """What TensorBoard finds, without times."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    build(arguments(folder, report_to=["tensorboard"])).train()
    found = events.EventAccumulator(str(next(folder.rglob("events.*")).parent)).Reload()
    names = [name for name in found.Tags()["scalars"] if not name.endswith(TIMES)]
    return {name: [event.value for event in found.Scalars(name)] for name in names}


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_is_told_the_same_numbers(tmp_path: Path) -> None:
    found = scalars(streamed, tmp_path / "a")
    assert len(found["train/loss"]) == 4
    assert found == scalars(plain, tmp_path / "b")
