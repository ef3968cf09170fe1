"""A run's model as it was saved: opened to run it, or written in the Hugging Face layout."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from openwafer import atomic_file
from openwafer.atomic_file import sync_path
from openwafer.config import Bytes, convert_fields
from openwafer.diagnostics import error
from openwafer.training.data.tokenizer import load_tokenizer
from openwafer.training.host_memory import return_large_blocks
from openwafer.training.models.checkpoint_folder import GENERATION_FILE, INDEX_FILE, WEIGHTS_FILE
from openwafer.training.models.export import SAFETENSORS_METADATA, hugging_face_files
from openwafer.training.session.building import build_hollow_model, make_workload, plan_input
from openwafer.training.session.config import RunConfig
from openwafer.training.session.opened_model import OpenedModel
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import BufferWatch
from openwafer.training.session.saved_run import FoundStores, SavedRun, SavedWeights, saved_arrays
from openwafer.training.sparsity.packed_linear import DenseWeights
from openwafer.training.store import ArraySpec, ParameterStore, Part, StoreOptions, Tier
from openwafer.training.store.checkpoint import require_match
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.store.safetensors_file import cut_into_shards, write_header
from openwafer.training.store.store_folder import read_manifest
from openwafer.training.stream.assemble import (
    Planned,
    create_store,
    execute,
    plan_run,
)
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import HeldGradients
from openwafer.training.stream.records import write_weights

SHARD_BYTES: Final = 2 << 30


@contextmanager
def opened_to_read(
    config: RunConfig,
    folder: RunFolder,
    saved: SavedRun,
    notify: Callable[[str], None],
    options: StoreOptions,
) -> Iterator[OpenedModel]:
    """Context in which the model of a saved step can run; nothing is written to the run's folder.

    Weights that do not fit host memory stream from the run's own store where it holds that step,
    else from a copy in the system's folder for temporary files.

    Args:
        config: of the run.
        folder: of the run.
        saved: the step; where the store holds it, no process may write to that.
        notify: told what takes long.
        options: how a store talks to the disk.
    """
    return_large_blocks()
    tokenizer = load_tokenizer(folder.path)
    with TemporaryDirectory(prefix="openwafer-") as name:
        scratch = Path(name)
        notify("building the model")
        model = build_hollow_model(config, tokenizer.vocab_size, scratch)
        BufferWatch(model).restore(saved.state.buffers)
        notify("planning a step")
        planned = plan_run(
            replace(
                make_workload(model, config, tokenizer.vocab_size), held_gradients=HeldGradients()
            ),
            Updater((), model),
            replace(plan_input(config, options), keeps_gradients=False, commits_steps=False),
            folder=scratch,
        )
        notify("reading the weights")
        with closed_on_error(_store(planned, folder, saved, scratch)) as store:
            execution = execute(model, planned, store)
        try:
            steps_done = saved.state.steps_done
            yield OpenedModel(config, model, tokenizer, execution, steps_done, planned)
        finally:
            execution.close()
            store.close()


def _store(planned: Planned, folder: RunFolder, saved: SavedRun, scratch: Path) -> ParameterStore:
    if planned.uses_disk and _has_records(folder, saved.found, planned):
        found = read_manifest(folder.store).catalog.layouts
        elsewhere = {(record, part): Tier.DISK for record in found for part in Part}
        return ParameterStore.open(
            folder.store,
            placement=elsewhere | dict(planned.placement.tiers),
            ring_bytes=planned.ring_bytes,
            options=planned.given.options.store,
            read_only=True,
        )
    with saved_arrays(folder, saved) as arrays:
        weights = SavedWeights(arrays, saved.state.counts, wants_masters=False)
        layouts = planned.plan.layouts.values()
        require_match(folder.path, arrays.specs[Part.WEIGHTS], layouts, Part.WEIGHTS)
        with closed_on_error(create_store(planned, scratch / "store")) as store:
            write_weights(store, weights)
            return store


def _has_records(folder: RunFolder, found: FoundStores | None, planned: Planned) -> bool:
    """Whether the run's only store cuts the weights into the records of the plan."""
    if found is None or found.stores is not None or not found.are_in_place:
        return False
    stored, wanted = read_manifest(folder.store).catalog.layouts, planned.plan.layouts
    return stored.keys() == wanted.keys() and all(
        stored[record].parts[Part.WEIGHTS] == wanted[record].parts[Part.WEIGHTS]
        for record in stored
    )


def require_absent(target: Path) -> None:
    """Raise ``export-exists`` unless ``target`` can be made; an empty folder is in nobody's way."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise error(
            "export-exists",
            f"{target} exists and is no empty folder",
            help="name another folder, or delete this one",
        )


@contextmanager
def appearing_whole(target: Path) -> Iterator[Path]:
    """Context with a folder to write to, which becomes ``target`` where the block ends well.

    Raises:
        OpenwaferError: ``export-exists``, ``export-not-written``.
    """
    require_absent(target)
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        if target.exists():
            target.rmdir()
        partial.rename(target)
        sync_path(target.parent)
    except OSError as cause:
        raise error(
            "export-not-written",
            f"cannot write {target}: {cause}",
            help="free some space, or name another folder; what is read is unharmed",
        ) from cause
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_shards(
    target: Path, specs: Sequence[ArraySpec], tensors: Iterator[torch.Tensor], shard_bytes: int
) -> None:
    """Write the tensors, which come in the order of their specs."""
    shards = list(cut_into_shards(specs, shard_bytes))
    shard_of = {}
    for number, shard in enumerate(shards, start=1):
        name = WEIGHTS_FILE
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with (target / name).open("xb") as file:
            write_header(file, shard, SAFETENSORS_METADATA)
            for spec, tensor in zip(shard, tensors, strict=False):
                flat = tensor.to(spec.dtype).contiguous().reshape(-1)
                file.write(flat.view(torch.uint8).numpy().data)
                shard_of[spec.name] = name
        sync_path(target / name)
    if len(shards) > 1:
        total = sum(spec.num_bytes for spec in specs)
        index = {"metadata": {"total_size": total}, "weight_map": shard_of}
        atomic_file.write_text(target / INDEX_FILE, json.dumps(index, indent=2) + "\n")


@dataclass(frozen=True)
class ExportFormat:
    """How weights are written.

    Attributes:
        dtype: of floating-point tensors; ``None`` is that of each in the run.
        shard_bytes: a file exceeds this only where one tensor does.
        uses_average: writes the moving averages of the weights in place of the weights.
    """

    dtype: torch.dtype | None = None
    shard_bytes: Bytes = SHARD_BYTES
    uses_average: bool = False

    def __post_init__(self) -> None:
        convert_fields(self)


def export(
    config: RunConfig, run: RunFolder, saved: SavedRun, target: Path, form: ExportFormat
) -> Path:
    """Write safetensors shards, their index, the configs and the tokenizer to ``target``.

    The folder appears whole or not at all.

    Raises:
        OpenwaferError: ``export-exists``, ``export-no-average``, ``export-not-written``,
            ``export-mup`` for what muP does to a forward and no weight can stand for.
    """
    if form.uses_average and config.average_decay is None:
        raise error(
            "export-no-average",
            f"the run {run.path} keeps no average of its weights",
            help="leave the average out; a run with `ema: 0.999` keeps one",
        )
    with appearing_whole(target) as partial:
        _write_all(config, run, saved, partial, form)
    return target


def _write_all(
    config: RunConfig, run: RunFolder, saved: SavedRun, target: Path, form: ExportFormat
) -> None:
    dtype = form.dtype or config.weights.dtype
    tokenizer = load_tokenizer(run.path)
    with TemporaryDirectory(prefix="openwafer-") as scratch:
        model = build_hollow_model(config, tokenizer.vocab_size, Path(scratch))
    factors: dict[str, float] = {}
    for method in config.methods():
        factors |= method.export_factors(model, tokenizer.vocab_size)
    BufferWatch(model).restore(saved.state.buffers)
    files = hugging_face_files(model, dtype)
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in files.names}
    decay = config.average_decay if form.uses_average else None
    wants_masters = dtype is not config.weights.dtype
    counts = saved.state.counts
    with saved_arrays(run, saved) as arrays:
        stored = SavedWeights(arrays, counts, average_decay=decay, wants_masters=wants_masters)
        weights = DenseWeights(stored, model)
        specs = [
            _spec(files.names[name], tensor, form.dtype)
            for name, tensor in chain(
                ((name, weights.hollow(name)) for name in weights), buffers.items()
            )
        ]
        tensors = (
            tensor * factors[name] if name in factors else tensor
            for name, tensor in chain(weights.items(), buffers.items())
        )
        write_shards(target, specs, tensors, form.shard_bytes)
    contents = dict(files.json_files)
    if contents:
        generation = contents.get(GENERATION_FILE, {})
        contents[GENERATION_FILE] = _ending(generation, tokenizer.end_of_text_id)
    for name, content in contents.items():
        atomic_file.write_text(target / name, json.dumps(content, indent=2) + "\n")
    tokenizer.save(target)


def _ending(generation: Mapping[str, object], end_of_text_id: int) -> Mapping[str, object]:
    """The settings with the end of text among the tokens that end a text."""
    ends = generation.get("eos_token_id")
    if isinstance(ends, list) and end_of_text_id in ends:
        return generation
    return {**generation, "eos_token_id": end_of_text_id}


def _spec(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> ArraySpec:
    written = (tensor.is_floating_point() and dtype) or tensor.dtype
    return ArraySpec(name, written, tuple(tensor.shape))
