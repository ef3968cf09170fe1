"""The config of a run: every key of the YAML that ``openwafer train`` reads."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import ClassVar

from openwafer import config as yaml_config
from openwafer.config import Bytes, InvalidFieldError, PathLike, convert_fields, path_of
from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.reduced_sums import Reduction
from openwafer.training.data import SavedTokenizer
from openwafer.training.lr_schedules import SCHEDULES, Schedule, build_schedule
from openwafer.training.models import CheckpointFolder, GptConfig, ModelConfig
from openwafer.training.models.checkpoint_folder import CONFIG_FILE
from openwafer.training.models.next_token import require_next_token
from openwafer.training.noise_scale import Watched
from openwafer.training.plan_record import Activations, ExpertsWay, Mode
from openwafer.training.session.data_config import BatchConfig, TokensConfig
from openwafer.training.session.foreign_keys import FOREIGN_KEYS
from openwafer.training.session.loss_scale import LossScaling
from openwafer.training.session.optimizer_config import OptimizerConfig
from openwafer.training.session.parametrization import Parametrization
from openwafer.training.session.precision import MatmulPrecision, Precision, Weights
from openwafer.training.sparsity.activations.choice import WrittenActivations
from openwafer.training.sparsity.choice import WrittenProducts
from openwafer.training.sparsity.multiplication import Products
from openwafer.training.sparsity.options import WrittenSparsity, sparsity_groups
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreChoice, StoreSystems

WARM_UP_SHARE = 20
MAX_WARM_UP_STEPS = 1000
MAX_NAME_BYTES = 255
# What torch's generators take.
SMALLEST_SEED, LARGEST_SEED = -(2**63), 2**64 - 1


def _require_positive(config: object, *names: str) -> None:
    for name in names:
        found = getattr(config, name)
        if found is not None and not found > 0:
            raise InvalidFieldError(name, f"expected above 0, found {found}")


@contextmanager
def _of_field(name: str) -> Iterator[None]:
    """Context whose mistakes are those of a field."""
    try:
        yield
    except OpenwaferError as found:
        told = found.diagnostics[0]
        raise InvalidFieldError(name, told.message, help=told.help) from found


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
    """

    every: int = 1000
    keep: int = 2
    at_end: bool = True

    def __post_init__(self) -> None:
        _require_positive(self, "every", "keep")


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
        _require_positive(self, "every", "batches")


@dataclass(frozen=True)
class StreamingConfig:
    """How to stream; everything here is planned when left out.

    Attributes:
        device: auto, cpu, cuda or cuda:1.
        store: where the parameter store keeps its records: auto, dram or disk.
        host_memory: host memory the store may take; in stages, all that those of one host hold.
        mode: forces resident or streamed; pipelined gives each of several systems a stage.
        stages: of a pipelined run, whose systems are so many times fewer replicas of a pipeline;
            left out, there is one stage a system.
        activations: keep, recompute or offload for all layers, or for layers by name.
        prefetch_layers: how many layers ahead weights are fetched.
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
    layers: tuple[str, ...] = ()
    link_per_second: Bytes | None = None
    experts: ExpertsWay = ExpertsWay.AUTO

    def __post_init__(self) -> None:
        convert_fields(self)
        _require_positive(self, "link_per_second", "stages")
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


@dataclass(frozen=True)
class RunConfig:
    """A run; only `steps` and `data` have no default.

    Attributes:
        steps: training steps.
        data: where tokens come from.
        name: of the run's folder; default: the config file's name.
        folder: where run folders are.
        seed: of weights, dropout, order of data and sampling.
        log_every: steps between two lines where there is no terminal.
        model: what is trained.
        batch: how much a step trains on.
        parametrization: standard, or mup: initial weights, learning rates and weight decay are
            then those of a base model, and are scaled to the model's widths.
        base: the base model's widths, and its number of layers if that shall count, by the fields
            of the model's config, such as ``{hidden_size: 256, num_attention_heads: 4}``; all other
            fields are the model's.
        optimizer: how parameters are updated.
        schedule: how the learning rate moves.
        precision: number format that forwards compute in.
        matmul_precision: highest, high or medium: what torch.set_float32_matmul_precision is given
            in all processes of the run.
        weights: number format of the weights that are streamed; of bf16, fp32 masters are kept.
        sparsity: share of zeros in weights of linear modules but heads and routers, or groups of
                parameters with algorithms of their own; ``null`` is dense.
        sparse_products: auto, dense, sparse or measured: whether products with sparse weights skip
            zeros; dense ones have the bits of masked dense training. Or the fewest tokens with
            which they do, ``null`` for never, by globs of names, which is how a run keeps what it
            has measured.
        activation_sparsity: ``auto``, or globs of the names of linear modules, whose inputs come
            from a ReLU or the like: where these have many zeros, products skip them, forward and
            backward, on the CPU in fp32. Sums then have another order; ``null`` never does.
        loss_scale: for fp16.
        clip_norm: largest global norm of the gradients; ``null`` never clips.
        ema: decay of a moving average of the weights; ``null`` keeps none.
        device_memory: the memory setting: bytes the device may use; ``null`` is no cap.
        streaming: how to stream; planned when left out.
        checkpoint: when to write checkpoints.
        evaluate: when to evaluate; ``null`` never does.
        law: a file that ``openwafer fit --json`` wrote, by whose law held-out losses are judged;
                ``null`` judges none.
        noise_scale: whether to measure the gradient noise scale, of the normalisation layers'
                gradients (``norms``) or of ``all``; ``null`` does not.
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

    steps: int
    data: TokensConfig
    name: str | None = None
    folder: Path = Path("runs")
    seed: int = 0
    log_every: int = 10
    model: ModelConfig = field(default_factory=GptConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    parametrization: Parametrization = Parametrization.STANDARD
    base: dict[str, int] = field(default_factory=dict)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Precision = Precision.FP32
    matmul_precision: MatmulPrecision = MatmulPrecision.HIGHEST
    weights: Weights = Weights.FP32
    sparsity: WrittenSparsity | None = None
    sparse_products: WrittenProducts = Products.AUTO
    activation_sparsity: WrittenActivations | None = None
    loss_scale: LossScaling = field(default_factory=LossScaling)
    clip_norm: float | None = 1.0
    ema: float | None = None
    device_memory: Bytes | None = None
    streaming: StreamingConfig = field(default_factory=StreamingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig | None = None
    law: Path | None = None
    noise_scale: Watched | None = None
    trace_steps: tuple[int, ...] = (3, 4, 5)
    systems: int = 1
    reduction: Reduction = Reduction.ORDERED
    store_systems: StoreSystems = StoreSystems.AUTO
    systems_timeout: float = 600.0

    def __post_init__(self) -> None:
        convert_fields(self)
        _require_positive(self, "steps", "log_every", "clip_norm", "device_memory")
        _require_positive(self, "systems", "systems_timeout")
        if self.ema is not None and not 0 < self.ema < 1:
            raise InvalidFieldError("ema", f"expected between 0 and 1, found {self.ema}")
        if not SMALLEST_SEED <= self.seed <= LARGEST_SEED:
            raise InvalidFieldError("seed", f"expected a number of 64 bits, found {self.seed}")
        if self.name is not None and (Path(self.name).name != self.name or self.name == ".."):
            raise InvalidFieldError("name", f"'{self.name}' is no name of a folder")
        if self.name is not None and len(os.fsencode(self.name)) > MAX_NAME_BYTES:
            raise InvalidFieldError(
                "name",
                f"expected at most {MAX_NAME_BYTES} bytes, found {len(os.fsencode(self.name))}",
            )
        if self.sparsity is not None:
            sparsity_groups(self.sparsity)
        if isinstance(self.sparse_products, dict):
            for name, tokens in self.sparse_products.items():
                if tokens is not None and tokens < 1:
                    raise InvalidFieldError(
                        "sparse_products", f"expected at least 1 token for {name}, found {tokens}"
                    )
        self._check_base()
        self._check_formats()
        self._check_schedule()
        self._check_model()
        self._check_length()
        self._check_sizes()
        self._check_noise_scale()
        if self.law is not None and self.evaluate is None:
            raise InvalidFieldError(
                "law",
                "a law judges held-out losses, and this run takes none",
                help="set evaluate: {every: 100}, or leave law out",
            )

    def _check_base(self) -> None:
        is_mup = self.parametrization is Parametrization.MUP
        if is_mup and not self.base:
            raise InvalidFieldError(
                "parametrization",
                "mup scales from a base model, and no widths of one are given",
                help="write base: {hidden_size: ...} with the widths that settings were tuned at",
            )
        if self.base and not is_mup:
            raise InvalidFieldError(
                "base",
                "the standard parametrization has no base model",
                help="set parametrization: mup, or leave base out",
            )
        for name, width in self.base.items():
            if width < 1:
                raise InvalidFieldError("base", f"expected at least 1 for {name}, found {width}")
        if is_mup and isinstance(self.model, CheckpointFolder):
            raise InvalidFieldError(
                "parametrization",
                "mup decides on initial weights, and those of a saved model are there already",
                help="leave parametrization out, or describe the model by its architecture",
            )

    def _check_formats(self) -> None:
        if self.weights is Weights.BF16 and self.precision is Precision.FP16:
            raise InvalidFieldError(
                "weights",
                "bf16 weights stand beside precision: fp16, whose autocast would round them again",
                help="set precision to fp32 or bf16",
            )

        is_fp32 = self.precision is Precision.FP32 and self.weights is Weights.FP32
        if self.activation_sparsity is not None and not is_fp32:
            raise InvalidFieldError(
                "activation_sparsity",
                f"zeros are skipped in fp32, and here precision is {self.precision} and weights "
                f"are {self.weights}",
                help="leave activation_sparsity out, or set both to fp32",
            )

    def _check_schedule(self) -> None:
        with _of_field("schedule"):
            self.schedule.build(self.steps)

    def _check_model(self) -> None:
        if not isinstance(self.model, CheckpointFolder):
            return
        folder = self.model.path.expanduser()
        # What is missing is told where it is read: a run may only be looked at.
        if (folder / CONFIG_FILE).is_file():
            with _of_field("model"):
                require_next_token(replace(self.model, path=folder))

    def _check_noise_scale(self) -> None:
        if self.noise_scale is None:
            return
        if min(self.batch.sizes.all) < 2:
            raise InvalidFieldError(
                "noise_scale",
                "one sample a step does not tell noise from signal",
                help="set batch.size to 2 or more, or leave noise_scale out",
            )
        is_sparse = self.sparsity is not None or self.activation_sparsity is not None
        if self.noise_scale is Watched.ALL and is_sparse:
            raise InvalidFieldError(
                "noise_scale",
                "products that skip zeros do not tell each sample's gradient of their weights",
                help="set noise_scale: norms",
            )

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
        if last and last[0].from_step >= self.steps:
            raise InvalidFieldError(
                "batch",
                f"schedule changes the size to {last[0].size} from step {last[0].from_step} on, "
                f"and the run ends after {self.steps} steps",
                help="leave that change out, or raise steps",
            )

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
        groups = () if self.sparsity is None else sparsity_groups(self.sparsity)
        if self.systems == 1:
            return StoreChoice(StoreSystems.FIRST, "there is one system")
        if self.streaming.mode is Mode.PIPELINED:
            return StoreChoice(StoreSystems.FIRST, "each system has the records of its stage")
        if any(group.rewind_step is not None for group in groups):
            return StoreChoice(StoreSystems.FIRST, "rewind_step goes back in one store alone")
        return StoreChoice(StoreSystems.ALL, "store_systems is auto, and nothing wants one store")

    @property
    def keeps_gradients(self) -> bool:
        """Whether an update needs to know all gradients of its step first."""
        return self.clip_norm is not None or self.precision is Precision.FP16


def load_config(path: PathLike, overrides: tuple[str, ...] = ()) -> RunConfig:
    """Read a run's config; a run without a name gets that of the file.

    Raises:
        OpenwaferError: every mistake of the file with its place.
    """
    file = path_of(path, "path")
    config = yaml_config.load(file, RunConfig, overrides)
    config = replace(config, name=config.name or file.stem, folder=config.folder.expanduser())
    if isinstance(config.model, CheckpointFolder):
        config = replace(config, model=replace(config.model, path=_anchored(config.model.path)))
    return replace(config, data=_anchored_data(config.data))


def _anchored_data(data: TokensConfig) -> TokensConfig:
    folder = None if data.folder is None else _anchored(data.folder)
    tokenizer = data.tokenizer
    if isinstance(tokenizer, SavedTokenizer):
        tokenizer = replace(tokenizer, path=_anchored(tokenizer.path))
    return replace(data, folder=folder, tokenizer=tokenizer)


def _anchored(path: Path) -> Path:
    """The path from the root, as a run is resumed from any working directory."""
    return path.expanduser().absolute()
