"""The distributions that a model's initial weights are drawn from, seen while it is built."""

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.training.torch_private import TorchDispatchMode, Unguarded

NORMAL: Final = "aten::normal_"
UNIFORM: Final = "aten::uniform_"
SCALE: Final = "aten::mul_"
FILLS: Final = ("aten::fill_", "aten::zero_")
COPY: Final = "aten::copy_"


@dataclass
class _Drawn:
    """Standard deviations of the draws that a tensor holds, and whether they cover it."""

    tensor: weakref.ref[Tensor]
    stds: list[float]
    is_known: bool = True


class Draws(Unguarded, TorchDispatchMode):
    """Context in which the draws of initial weights are recorded."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn: dict[int, _Drawn] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        name = func._schema.name  # noqa: SLF001 - no public name
        if args and isinstance(args[0], Tensor):
            if torch.Tag.nondeterministic_seeded in func.tags:
                self._draw(name, args, options)
            elif name == SCALE and isinstance(args[1], int | float):
                self._scale(args[0], float(args[1]))
            elif name in FILLS or name == COPY:
                self._overwrite(args[0], is_known=name in FILLS)
        return func(*args, **options)

    def stds(self, model: nn.Module) -> dict[str, float | None]:
        """By parameter, the standard deviation of what it was drawn from.

        ``None`` where nothing was drawn, as for norms and biases.

        Raises:
            OpenwaferError: ``mup-initial-weights`` for weights of some other distribution.
        """
        return {name: self._std(name, parameter) for name, parameter in model.named_parameters()}

    def _std(self, name: str, parameter: Tensor) -> float | None:
        drawn = self._drawn.get(id(parameter))
        is_drawn = drawn is not None and drawn.tensor() is parameter
        if drawn is None or not is_drawn or not parameter.requires_grad:
            return None
        if not drawn.is_known or len(set(drawn.stds)) != 1:
            raise _unseen(name, "are not drawn from one normal or uniform distribution")
        return drawn.stds[0]

    def _draw(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        tensor = args[0]
        own = owner_of(tensor)
        bounds = _arguments(args, options)
        std = None
        if name == NORMAL:
            std = bounds[1]
        elif name == UNIFORM:
            std = abs(bounds[1] - bounds[0]) / math.sqrt(12)
        is_whole = tensor.numel() == own.numel()
        before = self._drawn.get(id(own))
        if is_whole or before is None or before.tensor() is not own:
            before = self._drawn[id(own)] = _Drawn(weakref.ref(own), [])
        before.stds.append(0.0 if std is None else std)
        before.is_known = before.is_known and std is not None

    def _overwrite(self, tensor: Tensor, *, is_known: bool) -> None:
        """Forget the draws of a tensor that is filled, and distrust one that is copied to."""
        own = owner_of(tensor)
        # Rows of zeros, as of a padding token, leave the others as they were drawn.
        if is_known and tensor.numel() == own.numel():
            self._drawn.pop(id(own), None)
        if not is_known:
            self._drawn[id(own)] = _Drawn(weakref.ref(own), [0.0], is_known=False)

    def _scale(self, tensor: Tensor, factor: float) -> None:
        own = owner_of(tensor)
        drawn = self._drawn.get(id(own))
        if drawn is None or drawn.tensor() is not own:
            return
        if tensor.numel() != own.numel():
            drawn.is_known = False
        drawn.stds = [std * abs(factor) for std in drawn.stds]


def owner_of(tensor: Tensor) -> Tensor:
    """The tensor that a view is of; a tensor that is no view itself."""
    base = tensor._base
    return tensor if base is None else base


def _arguments(args: Sequence[Any], options: Mapping[str, Any]) -> tuple[float, float]:
    """Mean and deviation, or lower and upper bound: torch's defaults are 0 and 1 for both."""
    first = args[1] if len(args) > 1 else options.get("mean", options.get("from", 0.0))
    second = args[2] if len(args) > 2 else options.get("std", options.get("to", 1.0))
    return float(first), float(second)


def _unseen(name: str, why: str) -> Exception:
    return error(
        "mup-initial-weights",
        f"muP scales the standard deviation of initial weights, and those of {name!r} {why}",
        help="draw them with torch.nn.init.normal_ or uniform_, or in a way that does so",
    )
