"""The safetensors file format, written and read array by array.

The library's own writer wants all tensors of a file in memory at once; here one is enough. The
format: eight bytes with the length of the header, little endian; the header in JSON, which gives
dtype, shape and place of every tensor; their bytes without gaps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch

from openwafer.json_files import Count, Unchecked, convert, decode, encode
from openwafer.training.store.layout import ArrayPlace, ArraySpec, round_up

# Names of the format for torch's dtypes: https://huggingface.co/docs/safetensors
DTYPE_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
LENGTH_BYTES = 8


def cut_into_shards(specs: Iterable[ArraySpec], shard_bytes: int) -> Iterator[list[ArraySpec]]:
    """The arrays of each file, in the order given; one exceeds `shard_bytes` only by one array."""
    shard: list[ArraySpec] = []
    num_bytes = 0
    for spec in specs:
        if shard and num_bytes + spec.num_bytes > shard_bytes:
            yield shard
            shard, num_bytes = [], 0
        shard.append(spec)
        num_bytes += spec.num_bytes
    if shard:
        yield shard


def write_header(
    file: BinaryIO,
    specs: Sequence[ArraySpec],
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write all that precedes the bytes of the arrays, which follow in the order given.

    `metadata` is for readers of the file; those of a Hugging Face folder look for a format there.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for spec in specs:
        start, end = end, end + spec.num_bytes
        header[spec.name] = {
            "dtype": DTYPE_NAMES[spec.dtype],
            "shape": spec.shape,
            "data_offsets": (start, end),
        }
    text = encode(header)
    padded = text.ljust(round_up(len(text), LENGTH_BYTES))
    file.write(len(padded).to_bytes(LENGTH_BYTES, "little") + padded)


@dataclass(frozen=True)
class _TensorEntry:
    dtype: str
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]


def read_header(path: Path) -> dict[str, ArrayPlace]:
    """Arrays of a file by name; offsets count from its first byte.

    Raises ValueError when it is no such file.
    """
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > file_bytes - LENGTH_BYTES:
            raise ValueError(f"its header has {length} bytes by its length, the file {file_bytes}")
        header = decode(Unchecked, file.read(length))
    header.pop("__metadata__", None)
    start = LENGTH_BYTES + length
    return {
        name: _place_of(name, entry, start)
        for name, entry in convert(dict[str, _TensorEntry], header).items()
    }


def _place_of(name: str, entry: _TensorEntry, data_start: int) -> ArrayPlace:
    if entry.dtype not in DTYPES:
        raise ValueError(f"{name} has the unknown dtype {entry.dtype!r}")
    spec = ArraySpec(name, DTYPES[entry.dtype], entry.shape)
    start, end = entry.data_offsets
    if end - start != spec.num_bytes:
        raise ValueError(f"{name} of {spec.num_bytes} bytes lies from {start} to {end}")
    return ArrayPlace(spec, data_start + start, spec.num_bytes)
