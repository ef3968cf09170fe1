"""One run of the Trainer of transformers, plain and streamed, and what each leaves behind."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from openwafer.training.frontends.hugging_face import StreamedTrainer, StreamingCallback
from openwafer.training.plan_record import Mode
from openwafer.training.stream import StreamOptions

NUM_STEPS = 4
VOCABULARY = 64
STREAM: dict[str, Any] = {
    "device_memory": "1MiB",
    "options": StreamOptions(mode=Mode.STREAMED, min_layer_bytes=256, host_memory_bytes=1 << 28),
}
TIMES = ("runtime", "per_second", "preparation_time", "step_time")

Build = Callable[..., Trainer]


def build_gpt2(**config: Any) -> GPT2LMHeadModel:
    """Two layers with dropout, and an output that is tied to the embedding."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes | config, bos_token_id=0, eos_token_id=0))


def texts() -> list[dict[str, Tensor]]:
    """Sequences of 8 tokens."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(0, VOCABULARY, (8,), generator=generator) for _ in range(24)]
    return [{"input_ids": tokens, "labels": tokens} for tokens in drawn]


def arguments(folder: Path, **others: Any) -> TrainingArguments:
    """Accumulation, clipping, a schedule with warmup, evaluation and checkpoints."""
    given: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": NUM_STEPS,
        "max_grad_norm": 0.5,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "warmup_steps": 1,
        "lr_scheduler_type": "cosine",
        "eval_strategy": "steps",
        "eval_steps": 2,
        "logging_steps": 1,
        "save_steps": 2,
        "report_to": [],
        "disable_tqdm": True,
    }
    return TrainingArguments(str(folder), use_cpu=True, **given | others)


def accuracy(predicted: Any) -> dict[str, float]:
    """Share of the labels that the largest logit hits."""
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def make(
    kind: Callable[..., Trainer],
    args: TrainingArguments,
    model: nn.Module | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **given: Any,
) -> Trainer:
    """A trainer of a kind."""
    data = {"train_dataset": texts(), "eval_dataset": texts()[:8], "compute_metrics": accuracy}
    model = model or build_gpt2()
    return kind(model=model, args=args, callbacks=[*callbacks], **data | given)


def with_callback(callbacks: Sequence[TrainerCallback], **given: Any) -> Trainer:
    """A plain Trainer, to which a callback gives the stream."""
    return Trainer(callbacks=[*callbacks, StreamingCallback(**STREAM)], **given)


plain: Build = partial(make, Trainer)
streamed: Build = partial(make, partial(StreamedTrainer, **STREAM))
by_callback: Build = partial(make, with_callback)


def on_disk(args: TrainingArguments, **given: Any) -> Trainer:
    """A trainer whose store is in a folder."""
    folder = Path(args.output_dir) / "store"
    return make(partial(StreamedTrainer, **STREAM, folder=folder), args, **given)


class Left(NamedTuple):
    """What a run leaves."""

    weights: dict[str, Tensor]
    states: dict[str, Tensor]
    told: list[dict[str, float]]


def left_by(trainer: Trainer) -> Left:
    """Weights, optimizer states by their names, and the log without times."""
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    state = trainer.optimizer.state_dict()["state"]
    states = {
        f"{index}.{key}": torch.as_tensor(value).clone()
        for index, entries in state.items()
        for key, value in entries.items()
    }
    told = [
        {key: value for key, value in one.items() if not key.endswith(TIMES)}
        for one in trainer.state.log_history
    ]
    return Left(weights, states, told)


def trained(trainer: Trainer, resumed: Path | None = None) -> Left:
    """What is left when a trainer has trained, from the beginning or from a checkpoint."""
    trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    return left_by(trainer)


def apart(found: Left, expected: Left) -> list[str]:
    """What differs, by name."""
    pairs = [(found.weights, expected.weights), (found.states, expected.states)]
    names = [
        name
        for one, other in pairs
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    ]
    logs = [f"log {at}" for at, one in enumerate(expected.told) if found.told[at] != one]
    return names + logs
