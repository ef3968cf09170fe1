"""State of torch's random generators, saved and restored around what must repeat its draws."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes


@dataclass(frozen=True)
class RandomState:
    """States of the host generator and, on an accelerator, of its generator.

    Attributes:
        cpu: state of torch's CPU generator, uint8.
        device: the accelerator whose generator is saved too, or ``None``.
        accelerator: its state, uint8.
    """

    cpu: torch.Tensor
    device: torch.device | None = None
    accelerator: torch.Tensor | None = None

    @classmethod
    def now(cls, device: torch.device) -> "RandomState":
        """The present states."""
        with _disable_current_modes():
            cpu = torch.get_rng_state()
            if device.type != "cuda":
                return cls(cpu)
            return cls(cpu, device, torch.cuda.get_rng_state(device))

    def restore(self) -> None:
        """Set the generators back to these states."""
        with _disable_current_modes():
            torch.set_rng_state(self.cpu)
            if self.device is not None and self.accelerator is not None:
                torch.cuda.set_rng_state(self.accelerator, self.device)


@contextmanager
def keeping_random_state() -> Iterator[None]:
    """Context after which the generators of torch, Python and NumPy are as before."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
