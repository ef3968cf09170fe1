"""The index of a data folder, dataset.json: which shards make up which split."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from openwafer import atomic_file
from openwafer.diagnostics import error
from openwafer.training.data.shard import Shard, ShardHeader, open_shard
from openwafer.training.data.sources import read_json

FORMAT = "openwafer-token-dataset"
VERSION = 1
INDEX_FILE = "dataset.json"


class Split(StrEnum):
    """Which documents; a document is in exactly one split."""

    TRAIN = "train"
    VALIDATION = "validation"


@dataclass(frozen=True)
class Index:
    """What a data folder holds.

    Attributes:
        key: fingerprint of all that the shards were made from.
        tokenizer: fingerprint of the tokenizer beside the index.
        shards: file names and headers by split, in order.
    """

    key: str
    tokenizer: str
    shards: Mapping[Split, Mapping[str, ShardHeader]]


def write_index(folder: Path, index: Index) -> None:
    """Write ``dataset.json``; from then on the folder holds these shards."""
    content = {"format": FORMAT, "version": VERSION, **asdict(index)}
    atomic_file.write_text(folder / INDEX_FILE, json.dumps(content, indent=1) + "\n")


def read_index(folder: Path) -> Index:
    """Read ``dataset.json``; a folder without one, or of another version, is an error."""
    path = folder / INDEX_FILE
    if not path.is_file():
        raise error(
            "no-token-dataset",
            f"{folder} holds no token dataset: it has no {INDEX_FILE}",
            help="make it with prepare(config, folder)",
        )
    content = read_json(path)
    remedy = "delete this file; the next run tokenises the source again"
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if content.get(key) != expected:
            raise error(
                "wrong-index",
                f"{path}: {key}: expected {expected!r}, found {content.get(key)!r}",
                help=remedy,
            )
    try:
        shards = {
            split: {
                file: ShardHeader(**header) for file, header in content["shards"][split].items()
            }
            for split in Split
        }
        return Index(content["key"], content["tokenizer"], shards)
    except (KeyError, TypeError, AttributeError) as problem:
        raise error(
            "wrong-index", f"{path} is damaged: {type(problem).__name__}: {problem}", help=remedy
        ) from problem


def open_shards(folder: Path, split: Split, *, verify: bool) -> tuple[Shard, ...]:
    """Open the shards of ``split`` and compare each header with the index."""
    index = read_index(folder)
    if not index.shards[split]:
        raise error(
            "no-such-split",
            f"{folder} holds no {split} documents",
            help="raise validation_share, or give a source of more documents"
            if split is Split.VALIDATION
            else "lower validation_share, or give a source of more documents",
        )
    shards = []
    for file, expected in index.shards[split].items():
        shard = open_shard(folder / file, verify=verify)
        if shard.header != expected:
            raise error(
                "shard-mismatch",
                f"{shard.path} is another shard than {INDEX_FILE} lists",
                notes=(f"expected {expected}", f"found {shard.header}"),
                help=f"delete {folder / INDEX_FILE}; the next run tokenises the source again",
            )
        shards.append(shard)
    return tuple(shards)
