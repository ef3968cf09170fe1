"""Writes the weights of a run in the Hugging Face layout, one tensor in memory at a time."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from openwafer import atomic_file
from openwafer.atomic_file import sync_path
from openwafer.diagnostics import error
from openwafer.training.data import load_tokenizer
from openwafer.training.models import SAFETENSORS_METADATA, hugging_face_files
from openwafer.training.models.checkpoint_folder import GENERATION_FILE, INDEX_FILE, WEIGHTS_FILE
from openwafer.training.session.building import build_hollow_model
from openwafer.training.session.config import RunConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import BufferWatch
from openwafer.training.session.saved_arrays import SavedWeights, saved_arrays
from openwafer.training.session.saved_run import SavedRun
from openwafer.training.session.sparse_model import DenseWeights
from openwafer.training.store import ArraySpec
from openwafer.training.store.safetensors_file import cut_into_shards, write_header


@dataclass(frozen=True)
class ExportFormat:
    """How weights are written.

    Attributes:
        dtype: of floating-point tensors; ``None`` is that of each in the run.
        shard_bytes: a file exceeds this only where one tensor does.
        uses_average: writes the moving averages of the weights in place of the weights.
    """

    dtype: torch.dtype | None = None
    shard_bytes: int = 2 << 30
    uses_average: bool = False


def export(
    config: RunConfig, run: RunFolder, saved: SavedRun, target: Path, form: ExportFormat
) -> Path:
    """Write safetensors shards, their index, the configs and the tokenizer to ``target``.

    The folder appears whole or not at all.

    Raises:
        OpenwaferError: ``export-exists``, ``export-no-average``, ``export-not-written``.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise error(
            "export-exists",
            f"{target} exists and is no empty folder",
            help="name another folder, or delete this one",
        )
    if form.uses_average and config.ema is None:
        raise error(
            "export-no-average",
            f"the run {run.path} keeps no average of its weights",
            help="leave the average out; a run with `ema: 0.999` keeps one",
        )
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_all(config, run, saved, partial, form)
        if target.exists():
            target.rmdir()
        partial.rename(target)
        sync_path(target.parent)
    except OSError as cause:
        raise error(
            "export-not-written",
            f"cannot write {target}: {cause}",
            help="free some space, or name another folder; the run is unharmed",
        ) from cause
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write_all(
    config: RunConfig, run: RunFolder, saved: SavedRun, target: Path, form: ExportFormat
) -> None:
    dtype = form.dtype or config.weights.dtype
    tokenizer = load_tokenizer(run.path)
    with TemporaryDirectory(prefix="openwafer-") as scratch:
        model = build_hollow_model(config, tokenizer.vocab_size, Path(scratch))
    BufferWatch(model).restore(saved.state.buffers)
    files = hugging_face_files(model, dtype)
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in files.names}
    decay = config.ema if form.uses_average else None
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
        tensors = (tensor for _, tensor in chain(weights.items(), buffers.items()))
        _write_shards(target, specs, tensors, form.shard_bytes)
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


def _write_shards(
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
