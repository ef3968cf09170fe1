"""A resident program, the activations that live on it, and who reads them."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias
from weakref import finalize

import numpy as np
import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.fabric_device.report import Tally
from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_plan import Activation

Refusal: TypeAlias = Callable[[str], OpenwaferError]
"""Makes the error of a torch function that reads an activation inside a layer."""


@dataclass
class Account:
    """What the wafers of one device have done, and for which layer they do something.

    Attributes:
        layer: whose forward or backward goes on; empty between layers.
        refuses: a torch function that reads an activation inside the layer; None lets it.
    """

    tally: Tally = field(default_factory=Tally)
    copies_on: int = 0
    copies_off: Counter[str] = field(default_factory=Counter)
    host_calls: Counter[str] = field(default_factory=Counter)
    memory_bytes: int = 0
    layer: str = ""
    refuses: Refusal | None = None

    def refusal(self, function: str) -> OpenwaferError:
        """That of a function which the layer under way calls."""
        assert self.refuses is not None, "functions are taken inside a layer's forward"
        return self.refuses(function)

    @contextmanager
    def inside(self, layer: str, refuses: Refusal | None = None) -> Iterator[None]:
        """Context of a layer's forward, or of its backward."""
        before = self.layer, self.refuses
        self.layer, self.refuses = layer, refuses
        try:
            yield
        finally:
            self.layer, self.refuses = before


class Resting:
    """An activation on a wafer, whose room is given back when nothing refers to it.

    Args:
        wafer: has it.
        activation: where it lies.
        shape: of the tensor, whose last dim are its features.
        has_zeros: whether the tokens that fill up a PE's are zeros, as sums over tokens of a
            gradient need them.
    """

    def __init__(
        self, wafer: "Wafer", activation: Activation, shape: torch.Size, *, has_zeros: bool
    ) -> None:
        self.wafer = wafer
        self._activation = activation
        self.has_zeros = has_zeros
        # Room for its values, which come when somebody reads them.
        with torch.inference_mode(mode=False):
            self.plain = torch.empty(shape, dtype=torch.float32)
        self._is_here = False
        finalize(self, wafer.resident.release, activation)

    @property
    def activation(self) -> Activation:
        """Where it lies; see :meth:`check`."""
        self.check()
        return self._activation

    def check(self) -> None:
        """Refuse an activation whose values torch has written in host memory since."""
        if self.plain._version:
            raise error(
                "wafer-written",
                f"an activation {tuple(self.plain.shape)} on the wafer was written in place in "
                "host memory, and a layer takes it from the wafer",
                help="write x = x + y in the place of x += y, or take a copy, with .clone()",
            )

    def read(self, function: str) -> None:
        """Let the values be in :attr:`plain`.

        Args:
            function: who wants them.
        """
        account = self.wafer.account
        if account.refuses is not None:
            raise account.refuses(function)
        if not self._is_here:
            self._is_here = True
            account.copies_off[function] += 1
            values = self.wafer.resident.values(self._activation)
            # By numpy, so that autograd does not take it for a change of the tensor.
            self.plain.numpy()[...] = values.T.reshape(self.plain.shape)


class Room:
    """Activations without a tensor, whose room is given back when nothing refers to this."""

    def __init__(self, wafer: "Wafer", *activations: Activation) -> None:
        for activation in activations:
            finalize(self, wafer.resident.release, activation)


class Wafer:
    """A resident program for so many tokens.

    Args:
        resident: holds the activations.
        account: of the device.
    """

    def __init__(self, resident: Resident, account: Account) -> None:
        self.resident = resident
        self.account = account

    def rest(self, tensor: torch.Tensor) -> Resting:
        """An activation with a tensor's values: (..., features)."""
        self.account.copies_on += 1
        values = tensor.detach().numpy().reshape(-1, tensor.shape[-1]).T
        activation = self.resident.hold(np.ascontiguousarray(values))
        return Resting(self, activation, tensor.shape, has_zeros=True)

    def made(
        self,
        activation: Activation,
        shape: torch.Size | tuple[int, ...],
        *,
        has_zeros: bool = False,
    ) -> Resting:
        """What a pass has made; the pass is counted for the layer under way."""
        self.count()
        return Resting(self, activation, torch.Size(shape), has_zeros=has_zeros)

    def count(self) -> None:
        """Count the passes since the last time for the layer under way."""
        account = self.account
        for one in self.resident.passes:
            account.tally.add(account.layer, one)
        self.resident.passes.clear()
        plan = self.resident.plan
        used = plan.buffer_bytes + 4 * plan.tokens * self.resident.used_panels
        account.memory_bytes = max(account.memory_bytes, used)


def num_tokens(shape: torch.Size) -> int:
    """Tokens of a tensor (..., features)."""
    return prod(shape[:-1])
