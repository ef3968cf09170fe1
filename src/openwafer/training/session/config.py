"""The config of a run without methods, which add their keys to it."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, inf
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, Self

import torch
from torch import nn

from openwafer import config as yaml_config
from openwafer.config import Bytes, InvalidFieldError, PathLike, convert_fields, path_of
from openwafer.config.reading import require_positive
from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.training.collectives.ordered_sums import Reduction
from openwafer.training.data import SavedTokenizer
from openwafer.training.methods.seam import Method
from openwafer.training.metrics.loggers import Logger
from openwafer.training.models import CheckpointFolder, GptConfig, ModelConfig
from openwafer.training.models.checkpoint_folder import CONFIG_FILE
from openwafer.training.models.loss import require_text_loss
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    EarlyStoppingConfig,
    EvaluateConfig,
    MatmulPrecision,
    OptimizerConfig,
    Precision,
    ScheduleConfig,
    StreamingConfig,
    TokensConfig,
    Weights,
)
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.step import LossScaling
from openwafer.training.stream.replicas.ownership import StoreChoice, StoreSystems
from openwafer.training.stream.stream_options import FABRIC, FabricOptions

_REMEDIES: Final = {
    "optimizer: {learning_rate: ...}": ("lr", "learning_rate", "max_lr", "peak_lr"),
    "optimizer: {weight_decay: ...}": ("weight_decay", "wd"),
    "optimizer: {options: {betas: [..., ...]}}": (
        "betas",
        "adam_beta1",
        "adam_beta2",
        "beta1",
        "beta2",
    ),
    "optimizer: {options: {eps: ...}}": ("eps", "adam_epsilon"),
    "optimizer: {name: ...}": ("optim", "optimizer_type"),
    "precision: bf16": ("bf16", "use_bf16"),
    "precision: fp16": ("fp16", "use_fp16"),
    "precision: fp32, bf16 or fp16": ("dtype", "torch_dtype", "mixed_precision", "amp"),
    "matmul_precision: high or highest": ("tf32", "float32_matmul_precision"),
    "batch: {micro_batches: ...}": (
        *("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum"),
        *("accumulation_steps", "num_micro_batches"),
    ),
    "batch: {micro_batch_size: ...}": (
        *("per_device_train_batch_size", "train_micro_batch_size_per_gpu", "micro_batch_size"),
    ),
    "batch: {size: ...}, samples of a step over all micro-batches and systems": (
        *("batch_size", "train_batch_size", "global_batch_size"),
    ),
    "batch: {sequence_length: ...}": (
        *("seq_len", "seq_length", "sequence_length", "max_seq_length", "max_sequence_length"),
        *("block_size", "max_length", "context_length"),
    ),
    "schedule: {options: {num_warm_up_steps: ...}}": (
        *("warmup_steps", "num_warmup_steps", "warmup_iters", "warm_up_steps", "warmup"),
    ),
    "schedule: {options: {num_warm_up_steps: ...}}, in steps": ("warmup_ratio",),
    "schedule: {name: ...}": ("lr_scheduler", "lr_scheduler_type", "scheduler", "lr_schedule"),
    "steps: ...": (
        "max_steps",
        "num_steps",
        "max_iters",
        "train_steps",
        "total_steps",
        "iterations",
    ),
    "epochs: ...": ("num_epochs", "num_train_epochs", "max_epochs"),
    "clip_norm: ...": ("max_grad_norm", "grad_clip", "gradient_clipping", "gradient_clip_val"),
    "folder: ... and name: ..., the run is in folder/name": (
        "output_dir",
        "out_dir",
        "model_dir",
        "run_name",
    ),
    "checkpoint: {every: ...}": ("save_steps", "checkpoint_steps", "save_every", "save_interval"),
    "checkpoint: {keep: ...}": ("save_total_limit",),
    "evaluate: {every: ...}": ("eval_steps", "eval_interval", "eval_every", "eval_frequency"),
    "evaluate: {batches: ...}": ("eval_iters", "max_eval_samples"),
    "log_every: ...": ("logging_steps", "log_interval", "log_steps"),
    "loggers: [...], of tensorboard, wandb, mlflow and aim": ("report_to", "logger", "wandb"),
    "data: {source: {kind: ..., paths: [...]}}": (
        "dataset",
        "dataset_name",
        "train_file",
        "data_dir",
        "data_path",
    ),
    "data: {tokenizer: {path: ...}}": ("tokenizer", "tokenizer_name"),
    "model: {path: ...}, a folder": ("model_name_or_path", "model_name", "checkpoint_path"),
    "streaming: {activations: recompute}": (
        *("gradient_checkpointing", "activation_checkpointing", "checkpoint_activations"),
    ),
    "streaming: {device: ...}": ("device", "accelerator", "use_cpu", "no_cuda"),
    "device_memory: ..., what does not fit streams": (
        "offload",
        "cpu_offload",
        "zero_optimization",
    ),
    "systems: ..., and start it by `openwafer train --systems N` or torchrun": (
        *("num_gpus", "num_nodes", "world_size", "num_csx", "devices", "n_gpu"),
    ),
    "early_stopping: {patience: ..., min_delta: ...}": (
        *("early_stopping_patience", "patience", "early_stopping_threshold"),
    ),
    "checkpoint: {best: true}": ("load_best_model_at_end", "save_best", "save_best_only"),
    "`openwafer resume FOLDER`": ("resume", "resume_from_checkpoint", "load_checkpoint"),
    "sparsity: {sparsity: ..., algorithm: ...}": ("sparse", "sparsify", "mask", "pruning"),
}
FOREIGN_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        key: remedy if remedy.startswith("`") else f"write {remedy}"
        for remedy, keys in _REMEDIES.items()
        for key in keys
    }
)
"""The help for each."""
MAX_NAME_BYTES = 255
# What torch's generators take.
SMALLEST_SEED, LARGEST_SEED = -(2**63), 2**64 - 1


@contextmanager
def _of_field(name: str) -> Iterator[None]:
    """Context whose mistakes are those of a field."""
    try:
        yield
    except OpenwaferError as found:
        told = found.diagnostics[0]
        raise InvalidFieldError(name, told.message, help=told.help) from found


@dataclass(frozen=True)
class RunConfig:
    """A run; only `data`, and one of `steps` and `epochs`, must be given.

    Attributes:
        steps: training steps; 0 until the tokens are there to count those of `epochs`.
        epochs: passes over all samples, in place of `steps`; the last step may begin another.
        data: where tokens come from.
        name: of the run's folder; default: the config file's name.
        folder: where run folders are.
        seed: of weights, dropout, order of data and sampling.
        log_every: steps between two lines where there is no terminal.
        loggers: of other libraries, which get the numbers of each step, too.
        model: what is trained.
        batch: how much a step trains on.
        optimizer: how parameters are updated.
        schedule: how the learning rate moves.
        precision: number format that forwards compute in.
        matmul_precision: highest, high or medium: what torch.set_float32_matmul_precision is given
            in all processes of the run.
        weights: number format of the weights that are streamed; of bf16, fp32 masters are kept.
        loss_scale: for fp16.
        clip_norm: largest global norm of the gradients; ``null`` never clips.
        device_memory: the memory setting: bytes the device may use; ``null`` is no cap.
        streaming: how to stream; planned when left out.
        fabric: the rectangle of PEs of ``streaming: {device: fabric}``.
        checkpoint: when to write checkpoints.
        evaluate: when to evaluate; ``null`` never does.
        early_stopping: ends the run when held-out losses do not fall; ``null`` never does.
        trace_steps: steps whose times go to trace.json, where weights stream.
        systems: processes that run each step together, with a share of its micro-batches each.
                On the CPU the bits do not depend on how many there are.
        reduction: how systems add gradients: ordered, as a loop on one device does, or fast, in an
                order of the library's that depends on how many there are.
        store_systems: which systems have the parameter store: all, a share each, or the first;
                auto is all, unless something else in the config wants the first.
        systems_timeout: seconds after which a system that says nothing counts as lost; one that
                ends is noticed at once.
    """

    KEYS_ELSEWHERE: ClassVar[Mapping[str, str]] = FOREIGN_KEYS

    steps: int = field(default=0, kw_only=True)
    data: TokensConfig
    epochs: float | None = None
    name: str | None = None
    folder: Path = Path("runs")
    seed: int = 0
    log_every: int = 10
    loggers: tuple[Logger, ...] = ()
    model: ModelConfig = field(default_factory=GptConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Precision = Precision.FP32
    matmul_precision: MatmulPrecision = MatmulPrecision.HIGHEST
    weights: Weights = Weights.FP32
    loss_scale: LossScaling = field(default_factory=LossScaling)
    clip_norm: float | None = 1.0
    device_memory: Bytes | None = None
    streaming: StreamingConfig = field(default_factory=StreamingConfig)
    fabric: FabricOptions = field(default_factory=FabricOptions)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig | None = None
    early_stopping: EarlyStoppingConfig | None = None
    trace_steps: tuple[int, ...] = (3, 4, 5)
    systems: int = 1
    reduction: Reduction = Reduction.ORDERED
    store_systems: StoreSystems = StoreSystems.AUTO
    systems_timeout: float = 600.0

    def __post_init__(self) -> None:
        convert_fields(self)
        self._check_steps()
        require_positive(self, "log_every", "clip_norm", "device_memory")
        require_positive(self, "systems", "systems_timeout")
        if not SMALLEST_SEED <= self.seed <= LARGEST_SEED:
            raise InvalidFieldError("seed", f"expected a number of 64 bits, found {self.seed}")
        if self.name is not None and (Path(self.name).name != self.name or self.name == ".."):
            raise InvalidFieldError("name", f"'{self.name}' is no name of a folder")
        if self.name is not None and len(os.fsencode(self.name)) > MAX_NAME_BYTES:
            raise InvalidFieldError(
                "name",
                f"expected at most {MAX_NAME_BYTES} bytes, found {len(os.fsencode(self.name))}",
            )
        self._check_formats()
        self._check_fabric()
        self._check_schedule()
        self._check_model()
        self._check_length()
        self._check_sizes()
        self._check_evaluations()

    def _check_evaluations(self) -> None:
        """See that what follows held-out losses has some to follow."""
        if self.evaluate is not None:
            return
        for key, asked in (
            ("early_stopping", self.early_stopping is not None),
            ("checkpoint", self.checkpoint.best),
        ):
            if asked:
                what = key if key == "early_stopping" else "checkpoint.best"
                raise InvalidFieldError(
                    key,
                    f"{what} goes by held-out losses, and this run takes none: evaluate is null",
                    help=f"set evaluate: {{every: 100}}, or leave {what} out",
                )

    def _check_fabric(self) -> None:
        """See that the fabric has a run's micro-batches and numbers."""
        fabric, streaming = self.fabric, self.streaming
        if streaming.device != FABRIC:
            if fabric != FabricOptions():
                raise InvalidFieldError(
                    "fabric",
                    f"a rectangle is given, and the device is {streaming.device}",
                    help="set streaming.device to fabric, or leave fabric out",
                )
            return
        if self.tokens_of_piece % fabric.columns:
            raise InvalidFieldError(
                "fabric",
                f"a micro-batch of {self.tokens_of_piece} tokens does not divide into "
                f"{fabric.columns} columns of PEs",
                help="choose columns, or batch sizes, so that it does",
            )
        if self.evaluate is not None and self.batch.sequence_length % fabric.columns:
            raise InvalidFieldError(
                "fabric",
                f"a sample of {self.batch.sequence_length} tokens does not divide into "
                f"{fabric.columns} columns of PEs, and an evaluation's last batch may have one",
                help="choose columns that divide the sequence length, or leave evaluate out",
            )
        self._check_fabric_precision()
        if streaming.mode not in (None, Mode.STREAMED):
            raise InvalidFieldError(
                "streaming",
                f"mode is {streaming.mode}, and weights stream to the fabric",
                help="leave streaming.mode out",
            )
        if Activations.OFFLOAD in _all_activations(streaming.activations):
            raise InvalidFieldError(
                "streaming",
                "activations are offloaded, and those of the fabric stay there",
                help="write keep or recompute",
            )

    def _check_fabric_precision(self) -> None:
        """See that losses are scaled where gradients become f16."""
        wanted = Precision.FP32 if self.fabric.precision == "f32" else Precision.FP16
        if self.precision is not wanted or self.weights is not Weights.FP32:
            raise InvalidFieldError(
                "precision",
                f"precision is {self.precision} with weights of {self.weights}; the fabric "
                f"computes {self.fabric.precision}",
                help="set both to fp32, or weights to fp32, precision to fp16 for its loss scale, "
                "and fabric.precision to f16-f32",
            )

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Of the autocast that forwards run under; a fabric has none."""
        return None if self.streaming.device == FABRIC else self.precision.autocast_dtype

    @property
    def off_the_fabric(self) -> Self:
        """The run as torch computes it in host memory, in f32, if a fabric is its device."""
        if self.streaming.device != FABRIC:
            return self
        streaming = replace(self.streaming, device="cpu")
        return replace(self, streaming=streaming, fabric=FabricOptions(), precision=Precision.FP32)

    @property
    def tokens_of_piece(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch.samples_of_piece * self.batch.sequence_length

    def _check_formats(self) -> None:
        if self.weights is Weights.BF16 and self.precision is Precision.FP16:
            raise InvalidFieldError(
                "weights",
                "bf16 weights stand beside precision: fp16, whose autocast would round them again",
                help="set precision to fp32 or bf16",
            )

    def _check_steps(self) -> None:
        if self.epochs is not None and not 0 < self.epochs < inf:
            raise InvalidFieldError("epochs", f"expected above 0, found {self.epochs}")
        if self.steps < 0 or (self.epochs is None and not self.steps):
            found = f"expected above 0, found {self.steps}"
            if not self.steps:
                found += "; neither steps nor epochs are given"
            raise InvalidFieldError("steps", found, help="write steps: 1000")

    def in_steps(self, num_samples: int) -> Self:
        """With the steps that `epochs` come to, where the config has them.

        Args:
            num_samples: of the training split.

        Raises:
            OpenwaferError: ``epochs-steps`` where `steps` says otherwise, ``config-value``.
        """
        if self.epochs is None:
            return self
        steps = self.batch.sizes.steps_of(ceil(Fraction(str(self.epochs)) * num_samples))
        if self.steps not in (0, steps):
            raise error(
                "epochs-steps",
                f"epochs: {self.epochs:g} come to {counted(steps, 'step')} of these "
                f"{num_samples:,} samples, and steps: {self.steps} says otherwise",
                help="leave one of the two out; for a run that is there, --set epochs=null",
            )
        try:
            return replace(self, steps=steps)
        except InvalidFieldError as cause:
            told = f"{cause}, as epochs: {self.epochs:g} come to {counted(steps, 'step')}"
            raise error("config-value", told, help=cause.help) from cause

    def _check_schedule(self) -> None:
        if not self.steps:
            return
        with _of_field("schedule"):
            self.schedule.build(self.steps)

    def _check_model(self) -> None:
        if not isinstance(self.model, CheckpointFolder):
            return
        folder = self.model.path.expanduser()
        # What is missing is told where it is read: a run may only be looked at.
        if (folder / CONFIG_FILE).is_file():
            with _of_field("model"):
                require_text_loss(replace(self.model, path=folder), self.data.task)

    def _check_length(self) -> None:
        length = self.batch.sequence_length
        if isinstance(self.model, GptConfig) and length > self.model.context_length:
            raise InvalidFieldError(
                "batch",
                f"sequence_length {length} exceeds model.context_length "
                f"{self.model.context_length}",
                help=f"set model.context_length to {length}",
            )

    def _check_sizes(self) -> None:
        last = self.batch.schedule[-1:]
        if self.steps and last and last[0].from_step >= self.steps:
            raise InvalidFieldError(
                "batch",
                f"schedule changes the size to {last[0].size} from step {last[0].from_step} on, "
                f"and the run ends after {self.steps} steps",
                help="leave that change out, or raise steps",
            )

    @classmethod
    def load(cls, path: PathLike, overrides: tuple[str, ...] = ()) -> Self:
        """Read a run's config; a run without a name gets that of the file.

        Raises:
            OpenwaferError: every mistake of the file with its place.
        """
        file = path_of(path, "path")
        config = yaml_config.load(file, cls, overrides)
        config = replace(config, name=config.name or file.stem, folder=config.folder.expanduser())
        if isinstance(config.model, CheckpointFolder):
            model = replace(config.model, path=_anchored(config.model.path))
            config = replace(config, model=model)
        return replace(config, data=_anchored_data(config.data))

    def methods(self) -> tuple[Method, ...]:
        """The methods that the keys ask for, in the order in which they shape the model."""
        return ()

    def measured(self, model: nn.Module) -> Self:
        """With what was measured as the run's model was built."""
        return self

    def begun_in(self, folder: RunFolder) -> Self:
        """With what the run in a folder has measured before, if it has begun."""
        if self.epochs is None or self.steps or not folder.config.is_file():
            return self
        written = self.load(folder.config)
        return replace(self, steps=written.steps if written.epochs == self.epochs else 0)

    def require_same(self, before: Self, model: nn.Module) -> None:
        """Refuse to go on with a run that was begun with another config.

        Args:
            before: with which the run went until now.
            model: of this config.
        """

    @property
    def average_decay(self) -> float | None:
        """Of the moving averages of weights that updates keep; ``None`` where they keep none."""
        return None

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder / (self.name or "run")

    @property
    def shares_store(self) -> bool:
        """Whether several systems have records in their stores."""
        return self.systems > 1 and self.chosen_stores.systems is StoreSystems.ALL

    @property
    def chosen_stores(self) -> StoreChoice:
        """What ``store_systems`` comes to: nothing but the config has a part in it."""
        if self.store_systems is not StoreSystems.AUTO:
            return StoreChoice(self.store_systems, f"store_systems is {self.store_systems}")
        if self.systems == 1:
            return StoreChoice(StoreSystems.FIRST, "there is one system")
        if self.streaming.mode is Mode.PIPELINED:
            return StoreChoice(StoreSystems.FIRST, "each system has the records of its stage")
        for method in self.methods():
            if method.one_store:
                return StoreChoice(StoreSystems.FIRST, method.one_store)
        return StoreChoice(StoreSystems.ALL, "store_systems is auto, and nothing wants one store")

    @property
    def keeps_gradients(self) -> bool:
        """Whether an update needs to know all gradients of its step first."""
        return self.clip_norm is not None or self.precision is Precision.FP16


def _all_activations(
    chosen: Activations | Mapping[str, Activations] | None,
) -> Iterable[Activations | None]:
    return chosen.values() if isinstance(chosen, Mapping) else (chosen,)


def _anchored_data(data: TokensConfig) -> TokensConfig:
    folder = None if data.folder is None else _anchored(data.folder)
    tokenizer = data.tokenizer
    if isinstance(tokenizer, SavedTokenizer):
        tokenizer = replace(tokenizer, path=_anchored(tokenizer.path))
    return replace(data, folder=folder, tokenizer=tokenizer)


def _anchored(path: Path) -> Path:
    """The path from the root, as a run is resumed from any working directory."""
    return path.expanduser().absolute()
