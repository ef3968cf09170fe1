"""Runs small enough for a test, and the plain loop they have to equal."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from openwafer.training.data import Batch, DataSource, SavedTokenizer, SourceKind, prepare
from openwafer.training.data.tokenizer import train_tokenizer
from openwafer.training.models import GptConfig, UserModule, build, loss_of
from openwafer.training.models.build import with_vocab_size
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.building import tokenizer_of
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    Precision,
    StreamingConfig,
    TokensConfig,
)
from openwafer.training.session.forward import micro_batch_seed
from openwafer.training.store.update_rules import OPTIMIZERS
from openwafer.training.stream.plan.placement import StoreTier

AfterStep = Callable[[nn.Module], None]

NUM_STEPS = 4
NUM_DOCUMENTS = 40
MODEL = UserModule("tests.training.session.tiny_model:TinyModel")
GPT = GptConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    mlp_size=24,
    context_length=16,
    has_tied_embeddings=False,
    dropout=0.1,
)


@dataclass(frozen=True)
class TinyData:
    """A folder of texts with their tokenizer, and a folder for tokens that runs share."""

    source: Path
    tokenizer: Path
    tokens: Path

    def config(self) -> TokensConfig:
        return TokensConfig(
            DataSource(SourceKind.TEXT, (str(self.source),)),
            tokenizer=SavedTokenizer(self.tokenizer),
            validation_share=0.3,
            folder=self.tokens,
        )


def tiny_data(folder: Path) -> TinyData:
    """The folders within one."""
    return TinyData(folder / "texts", folder / "tokenizer", folder / "tokens")


def make_tiny_data(folder: Path) -> TinyData:
    """Texts with more numbers in them than a model of this size learns."""
    tiny = tiny_data(folder)
    for made in (tiny.source, tiny.tokenizer):
        made.mkdir()
    texts = [f"{n} squared is {n * n}, cubed {n**3}; " * 4 for n in range(NUM_DOCUMENTS)]
    for number, text in enumerate(texts):
        (tiny.source / f"{number:03d}.txt").write_text(text)
    train_tokenizer(texts, 280).save(tiny.tokenizer)
    return tiny


def tiny_config(data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM) -> RunConfig:
    """A streamed run of a few steps."""
    return RunConfig(
        steps=NUM_STEPS,
        data=data.config(),
        folder=folder,
        name="tiny",
        model=MODEL,
        batch=BatchConfig(size=6, sequence_length=12),
        checkpoint=CheckpointConfig(every=100),
        streaming=StreamingConfig(
            device="cpu", store=tier, mode=Mode.STREAMED, activations=Activations.KEEP
        ),
        trace_steps=(),
    )


def train_quietly(config: RunConfig) -> TrainResult:
    return Session(config, console=quiet()).train()


def quiet() -> Console:
    return Console(quiet=True)


def saved_parameters(result: TrainResult) -> Mapping[str, torch.Tensor]:
    """Parameters in the checkpoint at the end of a run."""
    assert result.checkpoint is not None
    [shard] = result.checkpoint.glob("weights-*.safetensors")
    return load_file(shard)


def saved_arrays(result: TrainResult) -> Mapping[str, torch.Tensor]:
    """Parameters and optimizer states, if there are any, in the checkpoint at the end of a run."""
    assert result.checkpoint is not None
    states = [load_file(shard) for shard in result.checkpoint.glob("states-*.safetensors")]
    assert len(states) <= 1
    return {**(states[0] if states else {}), **saved_parameters(result)}


def plain_loop(
    config: RunConfig, after_step: AfterStep = lambda model: None
) -> Mapping[str, torch.Tensor]:
    """Parameters after the same steps of an ordinary PyTorch loop."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    assert config.data.folder is not None
    dataset = prepare(preparation, config.data.folder)
    model = build(with_vocab_size(config.model, dataset.tokenizer.vocab_size), config.seed)
    optimizer = plain_optimizer(model, config)
    schedule = config.schedule.build(config.steps)
    is_scaled = config.precision is Precision.FP16
    scaling = config.loss_scale
    scaler = torch.amp.GradScaler(
        "cpu", scaling.initial_scale, backoff_factor=scaling.backoff_factor, enabled=is_scaled
    )
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.optimizer.learning_rate * schedule(step)
        batches = dataset.micro_batches(step, config.batch.num_micro_batches)
        plain_step(model, optimizer, batches, config, step, scaler)
        after_step(model)
    return dict(model.state_dict())


def plain_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    kind: Any = OPTIMIZERS[config.optimizer.name]
    chosen = {"fused": True} if "fused" in inspect.signature(kind).parameters else {}
    optimizer: torch.optim.Optimizer = kind(
        groups, lr=config.optimizer.learning_rate, **chosen, **config.optimizer.options
    )
    return optimizer


def plain_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    config: RunConfig,
    step: int,
    scaler: torch.amp.GradScaler,
) -> None:
    dtype = config.precision.autocast_dtype
    for index, batch in enumerate(batches):
        torch.manual_seed(micro_batch_seed(config.seed, step, index))
        # A model that only looks back needs no mask for padding, which stands at the end.
        has_encoder = isinstance(model, transformers.PreTrainedModel)
        padding = {"attention_mask": batch.attention_mask} if has_encoder else {}
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            output = model(input_ids=batch.input_ids, labels=batch.labels, **padding)
        scaler.scale(loss_of(output) / len(batches)).backward()
    scaler.unscale_(optimizer)
    if config.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def differing(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are not equal bit for bit."""
    names = left.keys() | right.keys()
    return sorted(n for n in names if not torch.equal(left[n], right[n]))
