"""The index of a checkpoint: which array is in which shard, and what is needed to go on.

The format is described in docs/formats/openwafer-checkpoint.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.dtype_names import dtype_name, dtype_named
from openwafer.training.store.json_state import Json
from openwafer.training.store.layout import KEPT_PARTS, ArraySpec, Part

FORMAT = "openwafer-checkpoint"
VERSION = 1
INDEX_NAME = "index.json"


@dataclass(frozen=True)
class StoredArray:
    """An array of the model as the checkpoint holds it, with its xxh3_64 checksum in hexadecimal.

    The file says for each piece where it starts in the whole array; here a piece is the whole.
    """

    spec: ArraySpec
    shard: str
    checksum: str


@dataclass(frozen=True)
class Checkpoint:
    """The head of a checkpoint. `num_updates` counts the updates each parameter has had."""

    folder: Path
    step: int
    state: Mapping[str, Json]
    num_updates: Mapping[str, int]
    arrays: Mapping[Part, Mapping[str, StoredArray]]

    def encode(self) -> bytes:
        """The index as JSON text in UTF-8."""
        arrays = {
            part.value: {name: _encode_array(array) for name, array in self.arrays[part].items()}
            for part in KEPT_PARTS
        }
        document = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "state": self.state,
            "num_updates": self.num_updates,
            "arrays": arrays,
        }
        return json.dumps(document).encode()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the head of a checkpoint. Raises `checkpoint-missing`, -broken or -format."""
    path = folder / INDEX_NAME
    try:
        document = json.loads(path.read_bytes())
        found = document["format"], document["version"]
        if found == (FORMAT, VERSION):
            return _decode(folder, document)
    except (FileNotFoundError, NotADirectoryError) as cause:
        raise error(
            "checkpoint-missing",
            f"there is no checkpoint in {folder}: it has no {INDEX_NAME}",
            help="give a folder such as checkpoints/step-00000020",
        ) from cause
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise broken(path, f"{type(cause).__name__}: {cause}") from cause
    raise error(
        "checkpoint-format",
        f"{path} is {found[0]!r} version {found[1]!r}; this program reads {FORMAT!r} "
        f"version {VERSION}",
        help="use the program version that wrote the checkpoint",
    )


def broken(path: Path, reason: str) -> OpenwaferError:
    """The error for a file that is not what its index or format promises."""
    return error(
        "checkpoint-broken",
        f"{path} is damaged: {reason}",
        help="use an earlier checkpoint, or copy this one again",
    )


def _encode_array(array: StoredArray) -> dict[str, Any]:
    shape = array.spec.shape
    piece = {
        "shard": array.shard,
        "start": [0] * len(shape),
        "shape": shape,
        "xxh3_64": array.checksum,
    }
    return {"dtype": dtype_name(array.spec.dtype), "shape": shape, "pieces": [piece]}


def _decode(folder: Path, document: dict[str, Any]) -> Checkpoint:
    arrays = {
        part: {
            name: _decode_array(name, entry)
            for name, entry in document["arrays"][part.value].items()
        }
        for part in KEPT_PARTS
    }
    return Checkpoint(folder, document["step"], document["state"], document["num_updates"], arrays)


def _decode_array(name: str, entry: dict[str, Any]) -> StoredArray:
    [piece] = entry["pieces"]
    if piece["shape"] != entry["shape"]:
        raise ValueError(f"{name!r} is stored as a part of the array only")
    spec = ArraySpec(name, dtype_named(entry["dtype"]), tuple(entry["shape"]))
    return StoredArray(spec, piece["shard"], piece["xxh3_64"])
