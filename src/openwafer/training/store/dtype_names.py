"""Names of torch's dtypes in files: `float32` for `torch.float32`."""

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """The name without its module."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name. Raises ValueError where torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found
