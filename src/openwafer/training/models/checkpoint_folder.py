"""Models from a checkpoint folder on this machine, in the Hugging Face layout."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from openwafer.config import convert_fields
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import JsonMistake, Unchecked, convert, decode, path_named
from openwafer.training.models.transformers_model import (
    REFUSALS,
    Task,
    closest,
    disable_cache,
    find_class,
    head_for,
)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
ONE_THREAD = "HF_DEACTIVATE_ASYNC_LOAD"
MAX_LISTED = 8
SAVE_AGAIN = "restore the file, or save the model again with save_pretrained"


@dataclass(frozen=True)
class CheckpointFolder:
    """A model with the weights of a folder; nothing is downloaded.

    Attributes:
        path: holds config.json, and model.safetensors or its shards with their index.
        task: a new head for the model; weights it does not find there are drawn anew. ``None`` for
            the model that was saved, all of whose weights must be there.
    """

    kind: Literal["checkpoint"] = field(default="checkpoint", kw_only=True)
    path: Path
    task: Task | None = None

    def __post_init__(self) -> None:
        convert_fields(self)


def load_saved_model(description: CheckpointFolder) -> nn.Module:
    """Build the model and read its weights, in float32.

    Raises:
        OpenwaferError: a file is missing or cannot be read, the model type is unknown, or weights
            are missing, have another shape or are not finite.
    """
    folder = description.path
    model_class, config = class_and_config(description)
    _require_weights(folder)
    model, missing = _read_weights(folder, model_class, config)
    if missing and description.task is None:
        raise error(
            "checkpoint-incomplete",
            f"{folder} lacks {len(missing)} of the weights of {model_class.__name__}",
            notes=_listed(missing),
            help="give a task to train a new head on this model",
        )
    _require_finite(folder, model)
    return model


def describe_saved_model(description: CheckpointFolder) -> nn.Module:
    """The model as its config says, with weights drawn anew; for who needs none of them.

    Raises:
        OpenwaferError: the config is missing, or does not lead to a model.
    """
    model_class, config = class_and_config(description)
    model: Any = model_class._from_config(config, dtype=torch.float32)  # noqa: SLF001
    if model.can_generate() and (description.path / GENERATION_FILE).is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(description.path)
    built: nn.Module = model
    return built


def has_saved_buffers(model: nn.Module) -> bool:
    """Whether a folder holds more of the model than its parameters."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return bool(model.state_dict().keys() - names)


def class_and_config(description: CheckpointFolder) -> tuple[Any, Any]:
    """The class of the model that a folder describes, and its config.

    Raises:
        OpenwaferError: the config is missing, or does not lead to a model.
    """
    saved = _read_json(description.path, CONFIG_FILE)
    config = _library_config(description.path, saved)
    if description.task is None:
        model_class = find_class(_saved_class(description.path, saved), Task.CAUSAL_LM)
    else:
        model_class = head_for(type(config), description.task)
    disable_cache(config)
    return model_class, config


def saved_vocab_size(description: CheckpointFolder) -> int | None:
    """Token ids that the saved model knows, by its config; ``None`` where that tells none.

    Raises:
        OpenwaferError: ``checkpoint-missing``, ``checkpoint-json``.
    """
    saved = _read_json(description.path, CONFIG_FILE)
    part = saved.get("text_config")
    found = saved.get("vocab_size", part.get("vocab_size") if isinstance(part, dict) else None)
    return found if isinstance(found, int) else None


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise _missing(folder, name)
    try:
        return decode(Unchecked, path.read_bytes())
    except JsonMistake as cause:
        raise error("checkpoint-json", f"{path}: {cause}", help=SAVE_AGAIN) from cause


@dataclass(frozen=True)
class _WeightIndex:
    weight_map: dict[str, str]


def _require_weights(folder: Path) -> None:
    if (folder / WEIGHTS_FILE).is_file():
        return
    if not (folder / INDEX_FILE).is_file():
        raise _missing(folder, WEIGHTS_FILE)
    try:
        index = convert(_WeightIndex, _read_json(folder, INDEX_FILE))
    except JsonMistake as cause:
        raise error(
            "checkpoint-json", f"{folder / INDEX_FILE}: {cause}", help=SAVE_AGAIN
        ) from cause
    for shard in sorted(set(index.weight_map.values())):
        # The cache of a hub is made of links.
        if not path_named(shard, folder / INDEX_FILE, may_link=True).is_file():
            raise _missing(folder, shard)


def _missing(folder: Path, name: str) -> OpenwaferError:
    if not folder.is_dir():
        return error(
            "checkpoint-missing",
            f"no folder {folder}",
            help="nothing is downloaded; a model of a hub comes by `hf download NAME --local-dir "
            "FOLDER`, or by save_pretrained",
        )
    present = sorted(path.name for path in folder.iterdir())
    return error(
        "checkpoint-missing",
        f"{folder} holds no {name}",
        notes=(
            f"expected: {CONFIG_FILE}, and {WEIGHTS_FILE} or its shards with {INDEX_FILE}",
            f"found: {', '.join(present[:MAX_LISTED]) or 'nothing'}",
        ),
        help="nothing is downloaded; save the model there with save_pretrained",
    )


def _library_config(folder: Path, saved: dict[str, Any]) -> Any:
    model_type = str(saved.get("model_type"))
    if model_type not in transformers.CONFIG_MAPPING:
        raise error(
            "model-architecture",
            f"{folder / CONFIG_FILE} has the model type {model_type!r}, which the transformers "
            f"library {transformers.__version__} does not know",
            help=closest(model_type, transformers.CONFIG_MAPPING),
        )
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except REFUSALS as cause:
        raise _refusal(folder, cause) from cause


def _saved_class(folder: Path, saved: dict[str, Any]) -> str:
    names = saved.get("architectures")
    if not names:
        raise error(
            "model-architecture",
            f"{folder / CONFIG_FILE} does not name the class of the model in 'architectures'",
            help="give a task",
        )
    return str(names[0])


def _read_weights(folder: Path, model_class: Any, config: Any) -> tuple[nn.Module, set[str]]:
    """The model, and the names of its weights that the folder lacks."""
    try:
        with _without_progress_bar(), _in_one_thread():
            model, info = model_class.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (SafetensorError, OSError) as cause:
        raise error(
            "checkpoint-weights", f"cannot read the weights in {folder}: {cause}", help=SAVE_AGAIN
        ) from cause
    except RuntimeError as cause:
        raise error(
            "checkpoint-shape",
            f"the weights in {folder} do not fit its {CONFIG_FILE}: {cause}",
            help=f"put the {CONFIG_FILE} there that was saved with these weights",
        ) from cause
    except REFUSALS as cause:
        raise _refusal(folder, cause) from cause
    return model, set(info["missing_keys"])


@contextmanager
def _in_one_thread() -> Iterator[None]:
    """Context in which the library reads in this thread, where allocation may be redirected."""
    earlier = os.environ.get(ONE_THREAD)
    os.environ[ONE_THREAD] = "1"
    try:
        yield
    finally:
        if earlier is None:
            del os.environ[ONE_THREAD]
        else:
            os.environ[ONE_THREAD] = earlier


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Context in which the library draws no bar over the lines of a run."""
    was_enabled = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            transformers.utils.logging.enable_progress_bar()


def _refusal(folder: Path, cause: Exception) -> OpenwaferError:
    return error(
        "model-config", f"the library refuses {folder / CONFIG_FILE}: {cause}", help=SAVE_AGAIN
    )


def _require_finite(folder: Path, model: nn.Module) -> None:
    damaged = {name for name, tensor in model.named_parameters() if not _is_finite(tensor)}
    if damaged:
        raise error(
            "checkpoint-not-finite",
            f"{len(damaged)} of the weights in {folder} hold NaN or infinity",
            notes=_listed(damaged),
            help="take an earlier checkpoint",
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    """One pass without a temporary: minimum and maximum both show a NaN."""
    if not tensor.numel():
        return True
    low, high = tensor.detach().aminmax()
    return bool(torch.isfinite(low) and torch.isfinite(high))


def _listed(names: set[str]) -> tuple[str, ...]:
    rest = (f"and {len(names) - MAX_LISTED} more",) if len(names) > MAX_LISTED else ()
    return (*sorted(names)[:MAX_LISTED], *rest)
