"""A folder in the Hugging Face layout that is being written: it appears whole or not at all."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from openwafer import atomic_file
from openwafer.atomic_file import sync_path
from openwafer.diagnostics import error
from openwafer.training.models.checkpoint_folder import INDEX_FILE, WEIGHTS_FILE
from openwafer.training.models.export import SAFETENSORS_METADATA
from openwafer.training.store import ArraySpec
from openwafer.training.store.safetensors_file import cut_into_shards, write_header

SHARD_BYTES: Final = 2 << 30


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
