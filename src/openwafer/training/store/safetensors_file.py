"""The safetensors file format, written and read array by array.

The library's own writer wants all tensors of a file in memory at once; here one is enough. The
format: eight bytes with the length of the header, little endian; the header in JSON, which gives
dtype, shape and place of every tensor; their bytes without gaps.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch

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
    text = json.dumps(header).encode()
    padded = text.ljust(round_up(len(text), LENGTH_BYTES))
    file.write(len(padded).to_bytes(LENGTH_BYTES, "little") + padded)


def read_header(path: Path) -> dict[str, ArrayPlace]:
    """Arrays of a file by name; offsets count from its first byte.

    Raises ValueError, KeyError or TypeError when it is no such file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    places = {}
    for name, entry in header.items():
        spec = ArraySpec(name, DTYPES[entry["dtype"]], tuple(entry["shape"]))
        start = LENGTH_BYTES + length + entry["data_offsets"][0]
        places[name] = ArrayPlace(spec, start, spec.num_bytes)
    return places
