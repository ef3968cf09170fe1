"""A saved model, or that of a run, is pruned at once and written again."""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

import psutil
import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from openwafer.atomic_file import sync_path
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import counted, error
from openwafer.training.data import DataSource, SourceKind, TokenDataset
from openwafer.training.data.documents import read_documents
from openwafer.training.data.tokenizer import Tokenizer, load_tokenizer
from openwafer.training.host_memory import read_host_memory
from openwafer.training.methods.one_shot import (
    Calibration,
    PrunedWeight,
    Pruning,
    is_linear,
    maps_to_prune,
    prune,
)
from openwafer.training.methods.sparsity import remark_on_dense
from openwafer.training.metrics.units import format_bytes, format_duration
from openwafer.training.models import CheckpointFolder, UserModule, build
from openwafer.training.models.checkpoint_folder import CONFIG_FILE
from openwafer.training.models.export import hugging_face_files
from openwafer.training.models.loss import is_of_texts
from openwafer.training.models.transformers_model import is_of_library
from openwafer.training.session.building import (
    DEFERRED_SHARE,
    SCRATCH_MIN_BYTES,
    SCRATCH_RESIDENT_BYTES,
    open_saved_data,
    require_embeddings,
)
from openwafer.training.session.forward import require_tokens
from openwafer.training.session.plan_table import show_remarks
from openwafer.training.session.saved_model import (
    SHARD_BYTES,
    ExportFormat,
    appearing_whole,
    export,
    require_absent,
    write_shards,
)
from openwafer.training.session.saved_run import SavedRun, read_newest
from openwafer.training.session.session import Session
from openwafer.training.store import ArraySpec
from openwafer.training.store.deferred_memory import DeferredMemory
from openwafer.training.store.safetensors_file import read_header

# As Wanda and SparseGPT are published.
MOST_TOKENS: Final = 2048
TABLES: Final = {".jsonl": SourceKind.JSONL, ".parquet": SourceKind.PARQUET}
WEIGHT_FILES: Final = (
    *(".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth"),
    *(".h5", ".msgpack", ".gguf", ".onnx"),
)


def samples_of_texts(calibration: Calibration, tokenizer: Tokenizer, length: int) -> list[Tensor]:
    """Samples of ``length`` tokens each, from the first documents of the texts on.

    Raises:
        OpenwaferError: ``calibration-short``, and what reading the texts raises.
    """
    tokens: list[int] = []
    wanted = calibration.num_samples * length
    for path in calibration.texts:
        kind = TABLES.get(Path(path).suffix, SourceKind.TEXT)
        for document in read_documents(DataSource(kind, (path,))):
            tokens += [*tokenizer.encode(document.text), tokenizer.end_of_text_id]
            if len(tokens) >= wanted:
                break
    num_samples = min(len(tokens), wanted) // length
    if not num_samples:
        raise error(
            "calibration-short",
            f"the texts have {counted(len(tokens), 'token')}, and a sample takes {length}",
            help="give longer texts",
        )
    return list(torch.tensor(tokens[: num_samples * length]).reshape(num_samples, length))


def samples_of_run(calibration: Calibration, dataset: TokenDataset) -> list[Tensor]:
    """The first samples that a run was trained on, without padding."""
    samples: list[Tensor] = []
    wanted = min(calibration.num_samples, dataset.num_samples)
    for step in count():
        samples += dataset.batch(step).without_padding
        if len(samples) >= wanted:
            return samples[:wanted]
    raise AssertionError


def sample_length(model: transformers.PreTrainedModel) -> int:
    """Tokens of a sample: as many as the model has positions for, and 2048 at most."""
    # Not every architecture has a table or a limit of positions.
    positions = getattr(model.config, "max_position_embeddings", None)
    return min(positions, MOST_TOKENS) if isinstance(positions, int) else MOST_TOKENS


def describe_samples(samples: Sequence[Tensor]) -> str:
    """How much is looked at."""
    num_tokens = sum(sample.numel() for sample in samples)
    return f"{counted(num_tokens, 'token')} in {counted(len(samples), 'sample')}"


class PruningProgress:
    """Shows what is done while its ``with`` block lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.perf_counter()
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not self._is_live,
        )
        self._task = self._bar.add_task("")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def tell(self, text: str, done: int, total: int) -> None:
        """So much is done; ``text`` names the last of it."""
        host = format_bytes(read_host_memory().resident_bytes)
        self._bar.update(
            self._task, completed=done, total=total, description=f"{text}  host {host}"
        )
        if not self._is_live:
            seconds = format_duration(time.perf_counter() - self._start)
            self._console.out(f"{done}/{total}  {text}  {seconds}  host {host}", highlight=False)


@dataclass(frozen=True)
class PrunedModel:
    """A model that was pruned and written.

    Attributes:
        folder: in the Hugging Face layout.
        weights: those that were pruned.
        num_parameters: of the whole model.
        seconds: from reading to writing.
    """

    folder: Path
    weights: Sequence[PrunedWeight]
    num_parameters: int
    seconds: float


def sparsify(
    source: PathLike,
    target: PathLike,
    pruning: Pruning,
    calibration: Calibration = Calibration(),  # noqa: B008 - frozen
    *,
    console: Console | None = None,
    trusts_code: bool = False,
) -> PrunedModel:
    """Write a model to ``target``, some of whose weights are zero; it appears whole or not at all.

    Args:
        source: the folder of a run, or of a model in the Hugging Face layout.
        target: must not exist yet.
        pruning: which weights become zero.
        calibration: texts for methods that look at inputs.
        console: where progress goes; standard output by default.
        trusts_code: see :class:`Session`.

    Raises:
        OpenwaferError: ``prune-source``, ``prune-quantized``, ``calibration-missing``, and what
            reading and writing the model and pruning it raise.
    """
    start = time.perf_counter()
    console = console or Console()
    source, target = path_of(source, "source"), path_of(target, "target")
    require_absent(target)
    with _scratch_beside(target) as scratch, PruningProgress(console) as progress:
        folder, samples = _read(source, calibration, pruning, scratch, trusts_code)
        dtypes = _saved_dtypes(folder)
        model = _load(folder, scratch)
        maps = maps_to_prune(model, pruning)
        if not pruning.group.filters:
            sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
            show_remarks([remark_on_dense(model, is_linear, sizes)], console)
        if pruning.method.reads_inputs:
            samples = samples or _samples_for(model, folder, calibration)
            console.out(f"looking at {describe_samples(samples)}", highlight=False)
        pruned = prune(model, maps, pruning, samples, progress.tell)
        with appearing_whole(target) as partial:
            _write(model, dtypes, partial)
            _copy_others(folder, partial)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return PrunedModel(target, pruned, num_parameters, time.perf_counter() - start)


@contextmanager
def _scratch_beside(target: Path) -> Iterator[Path]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent)
    except OSError as cause:
        raise error(
            "export-not-written",
            f"cannot write {target}: {cause}",
            help="name another folder; what is read is unharmed",
        ) from cause
    with folder as path:
        yield Path(path)


def _read(
    source: Path, calibration: Calibration, pruning: Pruning, scratch: Path, trusts_code: bool
) -> tuple[Path, list[Tensor]]:
    """A folder in the Hugging Face layout, and the samples that a run was trained on."""
    wants_run_data = pruning.method.reads_inputs and not calibration.texts
    if (source / CONFIG_FILE).is_file():
        if wants_run_data:
            raise error(
                "calibration-missing",
                f"{pruning.method} looks at the inputs of weights, and {source} is no run with "
                "data of its own",
                help="name texts like those the model is for: --calibration TEXTS",
            )
        return source, []
    if not (source / "config.yaml").is_file():
        raise error(
            "prune-source",
            f"{source} holds neither a run (config.yaml) nor a model ({CONFIG_FILE})",
            help="name the folder of a run, such as runs/NAME, or one that save_pretrained wrote",
        )
    run = Session(source, trusts_code=trusts_code)
    if isinstance(run.config.model, UserModule):
        raise error(
            "prune-source",
            f"the run {source} trains a module of your own, {run.config.model.factory}, which has "
            "no form that the transformers library reads",
            help="prune it in training: `sparsity: {sparsity: 0.75, init_method: topk}`",
        )
    exported = scratch / "model"

    def read(saved: SavedRun) -> list[Tensor]:
        shutil.rmtree(exported, ignore_errors=True)
        export(run.config, run.folder, saved, exported, ExportFormat())
        if not wants_run_data:
            return []
        return samples_of_run(calibration, open_saved_data(run.config, run.folder, saved))

    return exported, read_newest(run.folder, read)


def _load(folder: Path, scratch: Path) -> nn.Module:
    """The model in fp32, from some size on in a file; in evaluation mode."""
    spare_bytes = int(DEFERRED_SHARE * psutil.virtual_memory().available)
    memory = DeferredMemory(
        scratch,
        resident_bytes=min(spare_bytes, SCRATCH_RESIDENT_BYTES),
        min_bytes=SCRATCH_MIN_BYTES,
        spare_bytes=spare_bytes,
    )
    with memory:
        return build(CheckpointFolder(folder), seed=0).eval()


def _samples_for(model: nn.Module, folder: Path, calibration: Calibration) -> list[Tensor]:
    assert is_of_library(model)
    if not is_of_texts(type(model)):
        raise error(
            "model-task",
            f"{folder} holds {type(model).__name__}, which is no language model, and this method "
            "looks at what texts do in a model",
            help="choose the method magnitude, which looks at the weights alone",
        )
    tokenizer = load_tokenizer(folder)
    require_embeddings(CheckpointFolder(folder), tokenizer)
    length = sample_length(model)
    require_tokens(model, length)
    return samples_of_texts(calibration, tokenizer, length)


def _saved_dtypes(folder: Path) -> Mapping[str, torch.dtype]:
    """The dtype of each tensor in the files of a model."""
    found: dict[str, torch.dtype] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            found |= {name: place.spec.dtype for name, place in read_header(path).items()}
        except ValueError as cause:
            raise error(
                "checkpoint-weights",
                f"cannot read the weights in {path}: {cause}",
                help="restore the file, or save the model again with save_pretrained",
            ) from cause
    quantized = [name for name, dtype in found.items() if dtype.itemsize == 1]
    if quantized:
        raise error(
            "prune-quantized",
            f"{folder} holds {len(quantized)} tensors of eight bits, such as {quantized[0]}",
            help="prune the model that was quantized, and quantize it again",
        )
    return found


def _write(model: nn.Module, dtypes: Mapping[str, torch.dtype], target: Path) -> None:
    state = model.state_dict(keep_vars=True)
    names = hugging_face_files(model).names
    kinds = {dtype for dtype in dtypes.values() if dtype.is_floating_point}

    def written(name: str, tensor: Tensor) -> torch.dtype:
        if name in dtypes:
            return dtypes[name]
        # A tensor that the library has made of others.
        is_like_others = tensor.is_floating_point() and len(kinds) == 1
        return next(iter(kinds)) if is_like_others else tensor.dtype

    specs = [
        ArraySpec(names[name], written(names[name], state[name]), tuple(state[name].shape))
        for name in names
    ]
    write_shards(target, specs, (state[name].detach() for name in names), SHARD_BYTES)


def _copy_others(folder: Path, target: Path) -> None:
    """Configs, tokenizer and whatever else lies beside the weights."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.endswith(WEIGHT_FILES):
            shutil.copyfile(path, target / path.name)
            sync_path(target / path.name)
