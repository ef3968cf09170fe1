"""The sections of a run's config, and the number formats that it names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import signature
from math import inf
from pathlib import Path

import torch

from openwafer.config import Bytes, InvalidFieldError, convert_fields
from openwafer.config.reading import require_positive
from openwafer.diagnostics import counted, did_you_mean
from openwafer.training.data import (
    DataConfig,
    Sampling,
    SavedTokenizer,
    SizeChange,
    TokenizerTraining,
)
from openwafer.training.data.dataset import BatchSizes
from openwafer.training.data.infilling import FillInTheMiddle
from openwafer.training.data.masking import Masking
from openwafer.training.data.mix import Sources
from openwafer.training.data.span_corruption import SpanCorruption
from openwafer.training.lr_schedules import SCHEDULES, Schedule, build_schedule
from openwafer.training.models.transformers_model import Task
from openwafer.training.plan_record import Activations, ExpertsWay, Mode
from openwafer.training.store.update_rules import OPTIMIZERS
from openwafer.training.stream.plan.placement import StoreTier

WARM_UP_SHARE = 20
MAX_WARM_UP_STEPS = 1000


class Precision(StrEnum):
    """What forwards compute in."""

    FP32 = "fp32"  # no autocast: computes in the format of the weights
    BF16 = "bf16"  # computes under bf16 autocast
    FP16 = "fp16"  # computes under fp16 autocast with dynamic loss scaling

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Dtype of the autocast that forwards run under."""
        match self:
            case Precision.FP32:
                return None
            case Precision.BF16:
                return torch.bfloat16
            case Precision.FP16:
                return torch.float16

    @property
    def weight_dtype(self) -> torch.dtype:
        """The format itself, for weights that are written in it."""
        return self.autocast_dtype or torch.float32


class Weights(StrEnum):
    """What weights are streamed and computed with."""

    FP32 = "fp32"
    BF16 = "bf16"  # rounded from fp32 masters, to which the store applies the updates

    @property
    def dtype(self) -> torch.dtype:
        """The format as torch names it."""
        return Precision(self).weight_dtype


class MatmulPrecision(StrEnum):
    """What `torch.set_float32_matmul_precision` takes; less may be faster on some devices."""

    HIGHEST = "highest"
    HIGH = "high"
    MEDIUM = "medium"


@dataclass(frozen=True)
class BatchConfig:
    """How much a step trains on, and in how many pieces.

    Attributes:
        size: samples of a step, over all micro-batches; before the first change of `schedule`.
        sequence_length: tokens of a sample.
        micro_batches: how many equal pieces the samples are computed in; default 1.
        micro_batch_size: samples of a piece, in place of `micro_batches`.
        schedule: sizes that hold from later steps on. Micro-batches stay as large as before; a step
            has more of them.
    """

    size: int = 8
    sequence_length: int = 512
    micro_batches: int | None = None
    micro_batch_size: int | None = None
    schedule: tuple[SizeChange, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (
            ("size", 1),
            ("sequence_length", 2),
            ("micro_batches", 1),
            ("micro_batch_size", 1),
        ):
            found = getattr(self, name)
            if found is not None and found < least:
                raise InvalidFieldError(name, f"expected at least {least}, found {found}")
        if self.micro_batches is not None and self.micro_batch_size is not None:
            raise InvalidFieldError(
                "micro_batch_size",
                f"{self.micro_batch_size} stands beside micro_batches: {self.micro_batches}",
                help="leave one of the two out",
            )
        for name in ("micro_batches", "micro_batch_size"):
            found = getattr(self, name)
            if found is not None and self.size % found:
                raise InvalidFieldError(
                    name,
                    f"{found} does not divide the batch size {self.size}",
                    help=f"choose one of {', '.join(map(str, _divisors(self.size)))}",
                )
        for change in BatchSizes(self.size, self.schedule).changes:
            if change.size % self.samples_of_piece:
                raise InvalidFieldError(
                    "schedule",
                    f"the size {change.size} from step {change.from_step} on is no multiple of the "
                    f"micro-batch, which has {counted(self.samples_of_piece, 'sample')}",
                    help=f"choose {_multiples(change.size, self.samples_of_piece)}, or a smaller "
                    "micro_batch_size",
                )

    @property
    def sizes(self) -> BatchSizes:
        """Samples of each step."""
        return BatchSizes(self.size, self.schedule)

    @property
    def samples_of_piece(self) -> int:
        """Samples of a micro-batch, in every step."""
        return self.micro_batch_size or self.size // (self.micro_batches or 1)

    @property
    def num_micro_batches(self) -> int:
        """Equal pieces of a step before the first change."""
        return self.micro_batches_at(0)

    @property
    def fewest_micro_batches(self) -> int:
        """Of a step of the smallest size."""
        return min(self.sizes.all) // self.samples_of_piece

    @property
    def most_micro_batches(self) -> int:
        """Of a step of the largest size."""
        return max(self.sizes.all) // self.samples_of_piece

    def micro_batches_at(self, step: int) -> int:
        """Equal pieces of a step."""
        return self.sizes.at(step) // self.samples_of_piece


@dataclass(frozen=True)
class TokensConfig:
    """Where tokens come from; see :class:`openwafer.training.data.DataConfig` for most keys.

    Attributes:
        source: the documents, or several sources with their shares of the samples.
        tokenizer: how they become tokens; ``None`` takes the tokenizer of a saved model, or else
            trains one on the source.
        validation_share: share of the documents kept for evaluation.
        split_seed: decides which documents.
        shard_tokens: size of a file of tokens.
        cross_documents: samples run across documents; otherwise each holds one, padded.
        folder: where the tokens are kept, to share them between runs; ``None`` is the run's own.
        masking: hides tokens, which the model finds; ``None`` trains on the next token.
        fill_in_the_middle: writes texts with their middle last, and trains on the next token.
        span_corruption: leaves stretches out, which the decoder of a model of two texts writes.
    """

    source: Sources
    tokenizer: TokenizerTraining | SavedTokenizer | None = None
    validation_share: float = DataConfig.validation_share
    split_seed: int = DataConfig.split_seed
    shard_tokens: int = DataConfig.shard_tokens
    cross_documents: bool = True
    folder: Path | None = None
    masking: Masking | None = None
    fill_in_the_middle: FillInTheMiddle | None = None
    span_corruption: SpanCorruption | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
        # Mistakes are told while the config is read, where the keys stand.
        self.preparation(BatchConfig(), 0, TokenizerTraining())

    def preparation(
        self, batch: BatchConfig, seed: int, tokenizer: TokenizerTraining | SavedTokenizer
    ) -> DataConfig:
        """What to prepare.

        Args:
            batch: how samples are cut and grouped.
            seed: key of their order.
            tokenizer: what to use where none is named.
        """
        return DataConfig(
            source=self.source,
            tokenizer=self.tokenizer or tokenizer,
            sampling=Sampling(
                batch.sequence_length,
                batch.size,
                seed,
                self.cross_documents,
                batch.schedule,
                masking=self.masking,
                fill_in_the_middle=self.fill_in_the_middle,
                span_corruption=self.span_corruption,
            ),
            validation_share=self.validation_share,
            split_seed=self.split_seed,
            shard_tokens=self.shard_tokens,
        )

    @property
    def task(self) -> Task:
        """What a model learns from such data."""
        if self.span_corruption is not None:
            return Task.SEQ2SEQ_LM
        return Task.CAUSAL_LM if self.masking is None else Task.MASKED_LM


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _multiples(number: int, unit: int) -> str:
    """The multiples of a unit next to a number."""
    below = number // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)


@dataclass(frozen=True)
class GroupConfig:
    """Parameters with settings of their own.

    Attributes:
        match: patterns of parameter names, such as ``*.norm.weight``; later groups win.
        name: another optimizer for them.
        learning_rate: in place of the optimizer section's.
        weight_decay: in place of the optimizer section's, for vectors too.
        options: on top of the optimizer section's; alone where `name` is another optimizer.
    """

    match: tuple[str, ...]
    name: str | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_known(self.name)
        _require_not_negative(self)


@dataclass(frozen=True)
class OptimizerConfig:
    """How parameters are updated.

    Attributes:
        name: adamw, adam, sgd, lion, lamb, adafactor, muon, adagrad, adadelta, adamax, nadam,
            radam, rmsprop, asgd or rprop; muon takes the hidden matrices and leaves the rest to
            adamw.
        learning_rate: at its peak; the schedule multiplies it.
        weight_decay: of matrices, as vectors (norms, biases) have none; ``None`` is the
            optimizer's own default.
        options: further arguments of the torch class of that name.
        groups: parameters with other settings.
        frozen: patterns of parameters that are never updated.
    """

    name: str = "adamw"
    learning_rate: float = 3e-4
    weight_decay: float | None = None
    options: dict[str, object] = field(default_factory=dict)
    groups: tuple[GroupConfig, ...] = ()
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_known(self.name)
        _require_not_negative(self)


def _require_known(name: str | None) -> None:
    if name is not None and name not in OPTIMIZERS:
        raise InvalidFieldError(
            "name", f"no optimizer is called '{name}'", help=did_you_mean(name, OPTIMIZERS)
        )


def _require_not_negative(config: OptimizerConfig | GroupConfig) -> None:
    for name in ("learning_rate", "weight_decay"):
        found = getattr(config, name)
        if found is not None and not found >= 0:
            raise InvalidFieldError(name, f"expected at least 0, found {found}")
    for taken, own in (("lr", "learning_rate"), ("params", "match"), ("weight_decay", "")):
        if taken in config.options:
            raise InvalidFieldError(
                "options", f"'{taken}' has a key of its own", help=f"write {own or taken}: ..."
            )


@dataclass(frozen=True)
class Settings:
    """What the parameters of a group have in common; equal settings make one group."""

    optimizer: str
    learning_rate: float
    weight_decay: float | None
    options: Mapping[str, object]

    def overridden(self, group: GroupConfig) -> "Settings":
        """These settings with those that a group states for itself."""
        optimizer = group.name or self.optimizer
        inherited = self.options if optimizer == self.optimizer else {}
        return Settings(
            optimizer,
            self.learning_rate if group.learning_rate is None else group.learning_rate,
            self.weight_decay if group.weight_decay is None else group.weight_decay,
            {**inherited, **group.options},
        )

    def torch_options(self) -> dict[str, object]:
        """As torch's optimizers name them."""
        decay = {} if self.weight_decay is None else {"weight_decay": self.weight_decay}
        return {"lr": self.learning_rate, **decay, **self.options}


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate moves over the steps.

    Attributes:
        name: constant, linear, cosine, inverse-sqrt or warm-up-stable-decay.
        options: fields of :mod:`openwafer.training.lr_schedules`; left out, ``num_steps`` is that
            of the run and ``num_warm_up_steps`` a twentieth of it, at most 1000.
    """

    name: str = "cosine"
    options: dict[str, int | float] = field(default_factory=dict)

    def build(self, num_steps: int) -> Schedule:
        """The factor of the learning rate as a function of the step.

        Raises:
            OpenwaferError: ``schedule-unknown``, ``schedule-option``.
        """
        implied: dict[str, int | float] = {
            "num_warm_up_steps": min(num_steps // WARM_UP_SHARE, MAX_WARM_UP_STEPS)
        }
        if self.name in SCHEDULES and "num_steps" in signature(SCHEDULES[self.name]).parameters:
            implied["num_steps"] = num_steps
        return build_schedule(self.name, {**implied, **self.options})


@dataclass(frozen=True)
class CheckpointConfig:
    """When portable checkpoints are written; a disk tier also commits every step by itself.

    Attributes:
        every: steps between two.
        keep: how many are kept, the latest ones.
        at_end: whether one is written after the last step.
        best: whether that of the lowest held-out loss is kept, too.
    """

    every: int = 1000
    keep: int = 2
    at_end: bool = True
    best: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "every", "keep")


@dataclass(frozen=True)
class EvaluateConfig:
    """When the loss on held-out documents is taken.

    Attributes:
        every: steps between two, and after the last step.
        batches: at most so many batches of the validation split, from its start.
    """

    every: int = 100
    batches: int = 8

    def __post_init__(self) -> None:
        require_positive(self, "every", "batches")


@dataclass(frozen=True)
class EarlyStoppingConfig:
    """When a run ends before its last step.

    Attributes:
        patience: after so many evaluations in a row without a lower loss.
        min_delta: a loss is lower if it lies by more than this below the lowest before.
    """

    patience: int = 3
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        require_positive(self, "patience")
        if not 0 <= self.min_delta < inf:
            raise InvalidFieldError("min_delta", f"expected at least 0, found {self.min_delta}")


@dataclass(frozen=True)
class StreamingConfig:
    """How to stream; everything here is planned when left out.

    Attributes:
        device: auto, cpu, cuda, cuda:1 or fabric.
        store: where the parameter store keeps its records: auto, dram or disk.
        host_memory: host memory the store may take; in stages, all that those of one host hold.
        mode: forces resident or streamed; pipelined gives each of several systems a stage.
        stages: of a pipelined run, whose systems are so many times fewer replicas of a pipeline;
            left out, there is one stage a system.
        activations: keep, recompute or offload for all layers, or for layers by name.
        prefetch_layers: how many layers ahead weights are fetched.
        most_layer_calls: most calls of layers in a forward, where the model decides how many.
        layers: patterns of modules that become layers.
        link_per_second: bytes a second of a slow link to the CPU device, for measurements.
        experts: how several systems compute the experts of a mixture: fetch brings their weights to
                each, with owners each has some and gets the tokens of all for them, and auto takes
                what moves fewer bytes.
    """

    device: str = "auto"
    store: StoreTier = StoreTier.AUTO
    host_memory: Bytes | None = None
    mode: Mode | None = None
    stages: int | None = None
    activations: Activations | dict[str, Activations] | None = None
    prefetch_layers: int | None = None
    most_layer_calls: int | None = None
    layers: tuple[str, ...] = ()
    link_per_second: Bytes | None = None
    experts: ExpertsWay = ExpertsWay.AUTO

    def __post_init__(self) -> None:
        convert_fields(self)
        require_positive(self, "link_per_second", "stages", "most_layer_calls")
        if self.stages is not None and self.mode is not Mode.PIPELINED:
            raise InvalidFieldError(
                "stages",
                f"{self.stages} stages are asked for, and mode is {self.mode or 'left out'}",
                help="set mode: pipelined, or leave stages out",
            )
        if self.prefetch_layers is not None and self.prefetch_layers < 0:
            raise InvalidFieldError(
                "prefetch_layers", f"expected at least 0, found {self.prefetch_layers}"
            )
