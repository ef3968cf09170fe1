"""States of random generators, saved and restored around what must repeat its draws."""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from openwafer.training.torch_private import disable_current_modes, is_in_torch_dispatch_mode


@dataclass(frozen=True)
class RandomState:
    """States of torch's host generator, of an accelerator's, and of those of Python and NumPy.

    Attributes:
        cpu: state of torch's CPU generator, uint8.
        device: the accelerator whose generator is saved too, or ``None``.
        accelerator: its state, uint8.
        python, numpy: states of the generators behind ``random`` and ``numpy.random``, where they
            are saved.
    """

    cpu: torch.Tensor
    device: torch.device | None = None
    accelerator: torch.Tensor | None = None
    python: tuple[Any, ...] | None = None
    numpy: dict[str, Any] | None = None

    @classmethod
    def now(cls, device: torch.device, *, is_whole: bool = False) -> "RandomState":
        """The present states.

        Args:
            is_whole: takes those of Python and NumPy too, which costs fifty times as much.
        """
        python = random.getstate() if is_whole else None
        numpy = np.random.get_state(legacy=False) if is_whole else None
        with _unseen_by_modes():
            cpu = torch.get_rng_state()
            if device.type != "cuda":
                return cls(cpu, python=python, numpy=numpy)
            return cls(cpu, device, torch.cuda.get_rng_state(device), python, numpy)

    def restore(self) -> None:
        """Set the generators back to these states."""
        with _unseen_by_modes():
            torch.set_rng_state(self.cpu)
            if self.device is not None and self.accelerator is not None:
                torch.cuda.set_rng_state(self.accelerator, self.device)
        if self.python is not None and self.numpy is not None:
            random.setstate(self.python)
            np.random.set_state(self.numpy)


def _unseen_by_modes() -> AbstractContextManager[object]:
    is_seen = is_in_torch_dispatch_mode(include_infra_modes=True)
    return disable_current_modes() if is_seen else nullcontext()


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
