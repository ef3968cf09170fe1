"""From a config to data, model, optimizers, and the plan of a step."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.data import (
    Batch,
    Preparation,
    SavedTokenizer,
    TokenDataset,
    TokenizerTraining,
    prepare,
)
from openwafer.training.data.dataset import find_dataset
from openwafer.training.data.mix import Sources, parts_of, shares_of
from openwafer.training.data.tokenizer import Tokenizer, load_tokenizer
from openwafer.training.host_memory import keeping_freed_memory
from openwafer.training.models import (
    CheckpointFolder,
    GptConfig,
    ModelConfig,
    TransformersModel,
    UserModule,
    build,
)
from openwafer.training.models.build import build_without_weights, with_vocab_size
from openwafer.training.models.checkpoint_folder import saved_vocab_size
from openwafer.training.models.hollow import take_bf16_form, without_values
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session.config import RunConfig
from openwafer.training.session.config_sections import Weights
from openwafer.training.session.forward import forward_loss, model_inputs, require_tokens
from openwafer.training.session.optimizers import build_optimizers, freeze
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import SavedRun
from openwafer.training.session.systems import (
    MeasuredSystems,
    blocks_of,
    require_work_for_all,
)
from openwafer.training.store import StoreOptions
from openwafer.training.store.deferred_memory import DeferredMemory
from openwafer.training.stream.assemble import (
    Planned,
    plan_run,
)
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.stream_options import FABRIC, PlanInput, StreamOptions

# Above this share of the free memory, initial weights go through a scratch file to the store.
DEFERRED_SHARE: Final = 0.3
SCRATCH_RESIDENT_BYTES: Final = 256 << 20
SCRATCH_MIN_BYTES: Final = 64 << 10
DATA_STAYS = (
    "batch, seed and data of a run stay as they are, but for changes of batch.schedule that are "
    "still to come; begin a new run to change them"
)
Notify = Callable[[str], None]


def tokenizer_of(config: RunConfig) -> TokenizerTraining | SavedTokenizer:
    """The tokenizer of a run: the one named, that of a saved model, or one to be trained."""
    if config.data.tokenizer is not None:
        return config.data.tokenizer
    if isinstance(config.model, CheckpointFolder):
        # A folder that is missing lacks more than its tokenizer.
        saved_vocab_size(config.model)
        return SavedTokenizer(config.model.path)
    return TokenizerTraining()


def expected_vocab_size(config: RunConfig) -> int:
    """Token ids before there is a tokenizer; one that is trained may find fewer."""
    tokenizer = tokenizer_of(config)
    if isinstance(tokenizer, TokenizerTraining):
        return tokenizer.vocab_size
    return load_tokenizer(tokenizer.path.expanduser(), tokenizer.end_of_text).vocab_size


def require_embeddings(model: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raise ``model-vocab-size`` unless a saved model has an embedding for each id in the data."""
    given = saved_vocab_size(model) if isinstance(model, CheckpointFolder) else None
    if given is not None and given < tokenizer.num_text_ids:
        raise error(
            "model-vocab-size",
            f"the saved model knows {given} token ids, the tokenizer {tokenizer.num_text_ids}",
            help="leave data.tokenizer out, so that the tokenizer in the model's folder is taken",
        )


def build_model(config: RunConfig, vocab_size: int, scratch_folder: Path) -> nn.Module:
    """The model with its initial weights, in training mode and in fp32.

    Args:
        config: of the run; ``config.seed`` decides the weights.
        vocab_size: token ids of the tokenizer.
        scratch_folder: where weights lie until the store has them, if they are large beside the
            free memory or beside the host memory that the store may take.
    """
    described = with_vocab_size(config.model, vocab_size)
    with _memory_for(described, config, scratch_folder):
        draw = partial(build, described, config.seed)
        for method in config.methods():
            draw = partial(method.draw, draw, vocab_size)
        model = draw()
        _shape_weights(model, config, has_weights=True)
    _shape_forward(model, config, vocab_size)
    return model


def _shape_weights(model: nn.Module, config: RunConfig, *, has_weights: bool) -> None:
    freeze(model, config.optimizer.frozen)
    for method in config.methods():
        method.shape_weights(model, has_weights=has_weights)


def _shape_forward(model: nn.Module, config: RunConfig, vocab_size: int) -> None:
    for method in config.methods():
        method.shape_forward(model, vocab_size)


def build_hollow_model(config: RunConfig, vocab_size: int, scratch_folder: Path) -> nn.Module:
    """The model in the run's format of weights and without them; its buffers are as they begin.

    Enough to plan, to name tensors, and to take weights that were saved. No weight is drawn or
    read, but where the model cannot be built without: then as :func:`build_model` does.
    """
    model = build_shapes(config, vocab_size)
    if model is None:
        return _without_weights(build_model(config, vocab_size, scratch_folder), config)
    return model


def build_shapes(config: RunConfig, vocab_size: int) -> nn.Module | None:
    """As :func:`build_hollow_model`; ``None`` where weights would have to be drawn or read."""
    model = build_without_weights(with_vocab_size(config.model, vocab_size), config.seed)
    if model is None:
        return None
    _shape_weights(model, config, has_weights=False)
    _shape_forward(model, config, vocab_size)
    return _without_weights(model, config)


def _without_weights(model: nn.Module, config: RunConfig) -> nn.Module:
    take_weights(model, config)
    for parameter in model.parameters():
        parameter.data = without_values(parameter, parameter.device)
    return model


def take_weights(model: nn.Module, config: RunConfig) -> dict[str, torch.Tensor]:
    """Give a model the run's format of weights; returns its weights as they were, by name.

    In another format than fp32 the model has no weights from then on, until it is assembled.
    """
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if config.weights is Weights.BF16:
        take_bf16_form(model)
    return weights


def make_optimizers(model: nn.Module, config: RunConfig, vocab_size: int) -> tuple[Optimizer, ...]:
    """The torch optimizers over the model's trained parameters, by the rules of the run's methods.

    Raises:
        OpenwaferError: as :func:`build_optimizers`, and what methods have no rule for.
    """
    rules = [method.parameter_rules(model, vocab_size) for method in config.methods()]
    return build_optimizers(model, config.optimizer, rules)


def make_updater(optimizers: Sequence[Optimizer], model: nn.Module, config: RunConfig) -> Updater:
    """The update rules over the model's trained parameters."""
    return Updater(
        optimizers,
        model,
        average_decay=config.average_decay,
        keeps_masters=config.weights is Weights.BF16,
    )


def make_workload(model: nn.Module, config: RunConfig, vocab_size: int) -> Workload:
    """A step of the run on made-up tokens, to plan by.

    Raises:
        OpenwaferError: the model takes no such tokens.
    """
    require_tokens(model, config.batch.sequence_length)
    batches = [model_inputs(model, _example(config, vocab_size)) for _ in largest_block(config)]

    def run(model: nn.Module, inputs: object) -> torch.Tensor:
        assert isinstance(inputs, Mapping)
        loss = forward_loss(model, inputs)
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise error(
                "model-loss",
                f"no parameter of {type(model).__name__} has a part in its loss",
                help="compute the loss from the parameters, without detach() and no_grad()",
            )
        return loss

    workload = Workload(
        model=model,
        batches=batches,
        loss_of=run,
        autocast_dtype=config.autocast_dtype,
        allocation=keeping_freed_memory,
    )
    for method in config.methods():
        workload = method.planned(workload)
    return workload


def largest_block(config: RunConfig) -> range:
    """The micro-batches of the system that has most of them, in a step that has most.

    Raises:
        OpenwaferError: ``systems-idle`` where a system has none in some step.
    """
    require_work_for_all(config)
    return max(blocks_of(config.batch.most_micro_batches, config.systems), key=len)


def plan_input(
    config: RunConfig, store: StoreOptions, measured: MeasuredSystems | None = None
) -> PlanInput:
    """What the run is planned from, by systems that were measured where there are several."""
    stores = config.chosen_stores
    return PlanInput(
        options=_stream_options(config, store),
        device_memory_bytes=config.device_memory,
        keeps_gradients=config.keeps_gradients,
        commits_steps=True,
        # Code of a user's own may count its calls where nobody sees it.
        may_speculate=config.keeps_gradients and not isinstance(config.model, UserModule),
        experts=config.streaming.experts,
        systems=config.systems,
        store_reason=stores.reason,
        hosts=measured.hosts if measured is not None and config.shares_store else (),
        network=None if measured is None else measured.network,
        num_tokens=config.tokens_of_piece,
    )


def _stream_options(config: RunConfig, store: StoreOptions) -> StreamOptions:
    streaming = config.streaming
    chosen, is_fabric = streaming.activations, streaming.device == FABRIC
    kept = Activations.KEEP if is_fabric else None
    return StreamOptions(
        device=streaming.device,
        tier=streaming.store,
        host_memory_bytes=streaming.host_memory,
        link_bytes_per_second=streaming.link_per_second,
        # One system has no stages.
        mode=None if streaming.mode is Mode.PIPELINED else streaming.mode,
        activations=chosen if isinstance(chosen, dict) else {},
        default_activations=kept if isinstance(chosen, dict) else chosen or kept,
        prefetch_layers=streaming.prefetch_layers,
        most_layer_calls=streaming.most_layer_calls,
        layers=streaming.layers,
        # Modules that stay on the device are computed by torch, and would escape their names.
        min_layer_bytes=1 if is_fabric else StreamOptions.min_layer_bytes,
        store_systems=config.chosen_stores.systems,
        store=store,
        fabric=config.fabric,
    )


def _memory_for(
    described: ModelConfig, config: RunConfig, scratch_folder: Path
) -> AbstractContextManager[object]:
    free_bytes = int(DEFERRED_SHARE * psutil.virtual_memory().available)
    most_bytes = min(config.streaming.host_memory or free_bytes, free_bytes)
    num_bytes = None
    if isinstance(described, GptConfig | TransformersModel):
        with torch.device("meta"):
            hollow = build(described, config.seed)
        num_bytes = sum(parameter.nbytes for parameter in hollow.parameters())
        if num_bytes <= most_bytes:
            return nullcontext()
    return DeferredMemory(
        scratch_folder,
        resident_bytes=min(most_bytes, SCRATCH_RESIDENT_BYTES),
        min_bytes=SCRATCH_MIN_BYTES,
        # How large other models are is known when they are there.
        spare_bytes=most_bytes if num_bytes is None else 0,
    )


def _example(config: RunConfig, vocab_size: int) -> Batch:
    samples, length = config.batch.samples_of_piece, config.batch.sequence_length
    spans = config.data.span_corruption
    num_read, num_written = (length, length) if spans is None else spans.sizes(length)
    ids, labels = (
        torch.arange(samples * size).reshape(samples, size) % vocab_size
        for size in (num_read, num_written)
    )
    if config.data.cross_documents:
        return Batch(ids, labels)
    mask = torch.ones_like(ids)
    # Real padding, as models leave out a mask that is all ones.
    mask[:, -1] = 0
    return Batch(ids, labels, mask)


@dataclass(frozen=True)
class ToPlan:
    """What a run is planned from beside its config.

    Attributes:
        model: its parameters need no values.
        optimizers: over them.
        vocab_size: token ids of the tokenizer.
        store: how the store talks to the disk.
        folder: where a disk tier would be.
        weights: initial ones that the model does not hold.
        measured: what the systems have found out of themselves; ``None`` where they have not met.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    vocab_size: int
    store: StoreOptions
    folder: Path
    weights: Iterable[torch.Tensor] = ()
    measured: MeasuredSystems | None = None

    def planned(self, config: RunConfig) -> Planned:
        """The plan of a run whose systems, one or several, have no stages."""
        return plan_run(
            make_workload(self.model, config, self.vocab_size),
            make_updater(self.optimizers, self.model, config),
            plan_input(config, self.store, self.measured),
            folder=self.folder,
            weights=self.weights,
        )


def prepare_data(config: RunConfig, folder: RunFolder, notify: Notify) -> TokenDataset:
    """The tokens that a run will train on, made now unless they are there."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    tokens = config.data.folder or folder.data

    def report(progress: Preparation) -> None:
        total = progress.total_bytes
        share = f", {progress.done_bytes / total:.0%}" if total else ""
        notify(f"{progress.stage}: {progress.num_documents} documents{share}")

    return prepare(preparation, tokens, report)


def open_saved_data(config: RunConfig, folder: RunFolder, saved: SavedRun) -> TokenDataset:
    """The tokens that a run was trained on; raises ``run-data-changed`` for any others."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    tokens = config.data.folder or folder.data
    _require_same_source(type(config).load(folder.config).data.source, config.data.source)
    # The tokens of the run, whatever has become of the source since; sizes to come may change.
    trained_on = preparation.sampling.until(saved.state.steps_done)
    dataset = find_dataset(tokens, trained_on, saved.state.data)
    if dataset is None:
        raise error(
            "run-data-changed",
            f"the batches of {tokens} are not those that the run {folder.path} was trained on",
            notes=(f"expected the fingerprint {saved.state.data}",),
            help=f"{DATA_STAYS}; if the tokens were moved or deleted, bring them back",
        )
    return replace(dataset, sampling=preparation.sampling)


def _written(sources: Sources) -> str:
    """All that a config says of sources."""
    parts, shares = parts_of(sources), shares_of(sources)
    written = [", ".join(f"{key}={v}" for key, v in asdict(part).items()) for part in parts]
    shown = zip(shares, written, strict=True) if shares else ()
    return "; ".join(f"share {share:g} of {part}" for share, part in shown) or written[0]


def _require_same_source(trained_on: Sources, now: Sources) -> None:
    if now != trained_on:
        raise error(
            "run-data-changed",
            "data.source is not what the run was trained on",
            notes=(f"expected {_written(trained_on)}", f"found {_written(now)}"),
            help=DATA_STAYS,
        )
