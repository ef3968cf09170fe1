"""A resident program, the activations that live on it, and who reads them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np
import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.fabric_device.report import Tally
from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_plan import Activation, ResidentPlan

Refusal: TypeAlias = Callable[[str], OpenwaferError]
"""Makes the error of a torch function that reads an activation inside a layer."""


@dataclass
class Account:
    """What the wafers of one device have done, and for which layer they do something.

    Attributes:
        plan: of the program that has needed most memory of a PE.
        panels: of its arena.
        layer: whose forward or backward goes on; empty between layers.
        refuses: a torch function that reads an activation inside the layer; None lets it.
    """

    tally: Tally = field(default_factory=Tally)
    copies_on: int = 0
    copies_off: Counter[str] = field(default_factory=Counter)
    host_calls: Counter[str] = field(default_factory=Counter)
    copy_cycles: int = 0
    loads: int = 0
    plan: ResidentPlan | None = None
    panels: int = 0
    layer: str = ""
    refuses: Refusal | None = None

    @property
    def memory_bytes(self) -> int:
        """The most memory of a PE that a program has needed."""
        plan = self.plan
        return 0 if plan is None else plan.buffer_bytes + 4 * plan.tokens * self.panels

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
            with asked_by(f"layer {layer!r}" if layer else "what lies between layers"):
                yield
        finally:
            self.layer, self.refuses = before


@contextmanager
def asked_by(what: str) -> Iterator[None]:
    """Context of what asks for room, whose name an error has where there is none."""
    try:
        yield
    except OpenwaferError as cause:
        found = cause.diagnostics[0]
        if found.code != "kernel-memory" or found.notes:
            raise
        raise error(
            found.code,
            found.message,
            notes=(f"{what} asks for it",),
            help="spread the model over more PEs, give fewer tokens at a time, or set "
            "activations: recompute",
        ) from cause


class Held:
    """An activation on a wafer, whose room is given back when nothing refers to it.

    Args:
        wafer: has it.
        activation: where it lies.
        has_zeros: whether the tokens that fill up a PE's are zeros, as sums over tokens of a
            gradient need them.
        whole: the activation that this is a part of, which has the room.
    """

    def __init__(
        self,
        wafer: "Wafer",
        activation: Activation,
        *,
        has_zeros: bool,
        whole: "Held | None" = None,
    ) -> None:
        self.wafer = wafer
        self._activation = activation
        self.has_zeros = has_zeros
        # Room for its values, which come when somebody reads them.
        with torch.inference_mode(mode=False):
            shape = wafer.resident.plan.num_tokens, activation.features
            self.plain = torch.empty(shape, dtype=torch.float32)
        self.is_here = False
        self._whole = whole
        if whole is None:
            finalize(self, wafer.resident.release, activation)

    @property
    def num_features(self) -> int:
        """Of each token."""
        return self._activation.features

    def part(self, activation: Activation) -> "Held":
        """Some of its features, which lie in a row."""
        return Held(self.wafer, activation, has_zeros=self.has_zeros, whole=self)

    @property
    def activation(self) -> Activation:
        """Where it lies; see :meth:`check`."""
        self.check()
        return self._activation

    @property
    def is_given(self) -> bool:
        """Whether the host has the values without a copy."""
        return self.is_here and not self.plain._version

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
        if not self.is_here:
            self.is_here = True
            account.copies_off[function] += 1
            values = self.wafer.resident.values(self._activation)
            # By numpy, so that autograd does not take it for a change of the tensor.
            self.plain.numpy()[...] = values.T


class Wafer:
    """A resident program for so many tokens.

    Args:
        resident: holds the activations.
        account: of the device.
        functions: of torch, by whoever computes them here; those return None for what they do not.
    """

    def __init__(
        self,
        resident: Resident,
        account: Account,
        functions: Mapping[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        self.resident = resident
        self.account = account
        self.functions = functions

    def rest(self, tensor: torch.Tensor) -> Held:
        """An activation with a tensor's values: (..., features)."""
        self.account.copies_on += 1
        values = tensor.detach().numpy().reshape(-1, tensor.shape[-1])
        activation = self.resident.hold(np.ascontiguousarray(values.T))
        made = Held(self, activation, has_zeros=True)
        made.plain.numpy()[...], made.is_here = values, True
        return made

    def made(self, activation: Activation, *, has_zeros: bool = False) -> Held:
        """What a pass has made; the pass is counted for the layer under way."""
        self.count()
        return Held(self, activation, has_zeros=has_zeros)

    def count(self) -> None:
        """Count the passes since the last time for the layer under way."""
        account = self.account
        plan = self.resident.plan
        for one in self.resident.passes:
            account.tally.add(account.layer, one, plan)
        self.resident.passes.clear()
        account.copy_cycles += self.resident.copy_cycles
        self.resident.copy_cycles = 0
        used = plan.buffer_bytes + 4 * plan.tokens * self.resident.used_panels
        if used >= account.memory_bytes:
            account.plan, account.panels = plan, self.resident.used_panels


def num_tokens(shape: torch.Size) -> int:
    """Tokens of a tensor (..., features)."""
    return prod(shape[:-1])
