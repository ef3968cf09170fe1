"""What scripts call ``cstorch``."""

from typing import Final

import torch
from torch import full, full_like, manual_seed, ones, ones_like, zeros, zeros_like

from openwafer.training.frontends.present import amp, distributed, metrics, nn, optim, sparse
from openwafer.training.frontends.present import tools as utils
from openwafer.training.frontends.present.annotations import current_pol, pol
from openwafer.training.frontends.present.backends import (
    backend,
    current_backend,
    current_torch_device,
    use_cs,
)
from openwafer.training.frontends.present.executor import current_executor
from openwafer.training.frontends.present.storage import load, save
from openwafer.training.frontends.present.traced import (
    checkpoint_closure,
    compile,  # noqa: A004 - the vendor's name
    step_closure,
    summarize_scalar,
    summarize_tensor,
    trace,
)
from openwafer.training.frontends.scripts.compiler import CompilerSettings, name_scope

__all__ = [
    "__version__",
    "amp",
    "backend",
    "backends",
    "checkpoint_closure",
    "compile",
    "current_backend",
    "current_executor",
    "current_pol",
    "current_torch_device",
    "distributed",
    "full",
    "full_like",
    "load",
    "make_constant",
    "manual_seed",
    "metrics",
    "name_scope",
    "nn",
    "ones",
    "ones_like",
    "optim",
    "pol",
    "save",
    "sparse",
    "step_closure",
    "summarize_scalar",
    "summarize_tensor",
    "trace",
    "use_cs",
    "utils",
    "zeros",
    "zeros_like",
]

__version__: Final = "2.10.0"
"""The release whose names these are."""

backends: Final = CompilerSettings()
"""Settings of the vendor's machine."""


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose values a compiler may know; here the tensor itself."""
    return tensor
