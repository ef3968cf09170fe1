"""Writes the weights of a run in the Hugging Face layout, one tensor in memory at a time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from openwafer import atomic_file
from openwafer.config import Bytes, convert_fields
from openwafer.diagnostics import error
from openwafer.training.data.tokenizer import load_tokenizer
from openwafer.training.models.checkpoint_folder import GENERATION_FILE
from openwafer.training.models.export import hugging_face_files
from openwafer.training.session.building import build_hollow_model
from openwafer.training.session.config import RunConfig
from openwafer.training.session.model_folder import SHARD_BYTES, appearing_whole, write_shards
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import BufferWatch
from openwafer.training.session.saved_arrays import SavedWeights, saved_arrays
from openwafer.training.session.saved_run import SavedRun
from openwafer.training.sparsity.packed_linear import DenseWeights
from openwafer.training.store import ArraySpec


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
