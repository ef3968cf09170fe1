"""The index of a data folder, dataset.json: which shards make up which split."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from openwafer import atomic_file
from openwafer.diagnostics import error
from openwafer.json_files import SealedFormat, path_named
from openwafer.training.data.shard import Shard, ShardHeader, open_shard

INDEX_FILE = "dataset.json"


class Split(StrEnum):
    """A set of documents; each document is in exactly one."""

    TRAIN = "train"
    VALIDATION = "validation"


@dataclass(frozen=True)
class Index:
    """Names all shards of a data folder.

    Attributes:
        key: fingerprint of all that the shards were made from.
        tokenizer: fingerprint of the tokenizer beside the index.
        shards: file names and headers by split, in order.
    """

    key: str
    tokenizer: str
    shards: Mapping[Split, Mapping[str, ShardHeader]]

    def of_split(self, split: Split) -> Mapping[str, ShardHeader]:
        """The shards of a split; none where it has no documents."""
        return self.shards.get(split, {})


_REMEDY = "delete this file; the next run tokenises the source again"
FORMAT = SealedFormat(
    name="openwafer-token-dataset",
    version=2,
    content=Index,
    broken_code="wrong-index",
    broken_help=_REMEDY,
    version_code="wrong-index",
    version_help=_REMEDY,
)


def write_index(folder: Path, index: Index) -> None:
    """Write ``dataset.json``; from then on the folder holds these shards."""
    atomic_file.write_bytes(folder / INDEX_FILE, FORMAT.encode(index))


def read_index(folder: Path) -> Index:
    """Read ``dataset.json``; a folder without one, or with another version, is an error."""
    path = folder / INDEX_FILE
    if not path.is_file():
        raise error(
            "no-token-dataset",
            f"{folder} holds no token dataset: it has no {INDEX_FILE}",
            help="a run makes it; from Python, prepare(config, folder) does, in a folder below",
        )
    index = FORMAT.decode(path, path.read_bytes())
    for shards in index.shards.values():
        for file in shards:
            path_named(file, path)
    return index


def open_shards(folder: Path, split: Split, *, verify: bool) -> tuple[Shard, ...]:
    """Open the shards of ``split`` and compare each header with the index."""
    index = read_index(folder)
    if not index.of_split(split):
        raise error(
            "no-such-split",
            f"{folder} holds no {split} documents",
            help="raise validation_share, or give a source of more documents"
            if split is Split.VALIDATION
            else "lower validation_share, or give a source of more documents",
        )
    shards = []
    for file, expected in index.of_split(split).items():
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
