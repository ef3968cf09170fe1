"""Messages between the vendor's process and ours: a head as JSON, then the bytes of its tensors.

Both processes import this file, each with its own torch, and theirs has no openwafer: so it needs
nothing but torch. The messages are described in docs/formats/machine-messages.md.
"""

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

import torch

VERSION: Final = 1
"""Both sides have the same one."""

SOCKET_VARIABLE: Final = "OPENWAFER_ENGINE_SOCKET"
"""The number of the open socket by which the vendor's process asks."""

Head: TypeAlias = "dict[str, Any]"
Tensors: TypeAlias = Mapping[str, torch.Tensor]


def send(connection: "Connection[bytes, bytes]", head: Head, tensors: Tensors) -> None:
    """Send a message. Raises OSError where nobody listens."""
    kinds = {name: (str(one.dtype), list(one.shape)) for name, one in tensors.items()}
    connection.send_bytes(json.dumps(head | {"tensors": kinds}).encode())
    for one in tensors.values():
        # Neither a tensor of no dims nor one of bool has bytes to view as they are.
        flat = one.detach().contiguous().reshape(-1)
        if flat.numel():
            connection.send_bytes(flat.view(torch.uint8).numpy().data)


def receive(connection: "Connection[bytes, bytes]") -> tuple[Head, dict[str, torch.Tensor]]:
    """The next message, its tensors in memory of their own. Raises EOFError at the end."""
    head = json.loads(connection.recv_bytes())
    tensors = {}
    for name, (dtype, shape) in head.pop("tensors").items():
        # Whatever device the caller's context makes tensors on.
        tensor = torch.empty(shape, dtype=dtype_named(dtype), device="cpu")
        if tensor.numel():
            connection.recv_bytes_into(tensor.view(-1).view(torch.uint8).numpy())
        tensors[name] = tensor
    return head, tensors


def dtype_named(name: str) -> torch.dtype:
    """The dtype whose text this is."""
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found
