"""Finds weights that a plain loop would cast once, for several calls of layers.

Autocast keeps a cast of a weight until its outermost context ends, unless it is told not to. The
gradients of all uses of that cast are then added in its own format, and not in the weight's. A
streamed weight leaves the device between two layers, and its cast with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from openwafer.diagnostics import error
from openwafer.training.stream.device.device import Device

# Autocast leaves embeddings alone.
_NOT_CAST: Final = (nn.Embedding, nn.EmbeddingBag)


class SharedCasts:
    """Looks at the calls of layers, and of modules with weights beside them.

    Args:
        model: names the weights.
        device: where it runs.

    Attributes:
        is_checking: whether it looks.
    """

    def __init__(self, model: nn.Module, device: Device) -> None:
        self.is_checking = False
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._device = device
        # What autograd calls the cast of the probe that autocast keeps.
        self._kept = -1
        self._used: set[int] = set()

    @property
    def are_kept(self) -> bool:
        """Whether autocast is on and keeps casts."""
        kind = self._device.torch_device.type
        is_keeping = torch.is_autocast_enabled(kind) and torch.is_autocast_cache_enabled()
        return self.is_checking and is_keeping

    @contextmanager
    def leaving_none(self, module: nn.Module | None) -> Iterator[None]:
        """Context of a call, after which no cast is kept.

        Args:
            module: is called; ``None`` where a call is only repeated.

        Raises:
            OpenwaferError: ``cast-shared``.
        """
        are_kept = self.are_kept
        if are_kept:
            if self._cast_of_probe() != self._kept:
                self._used.clear()
            if module is not None:
                self._use(module)
        try:
            yield
        finally:
            torch.clear_autocast_cache()
            if are_kept and self.are_kept:
                self._kept = self._cast_of_probe()

    def use_beside(self, module: nn.Module) -> None:
        """A module beside the layers is called, whose casts the next layer ends."""
        if self.are_kept:
            if self._cast_of_probe() != self._kept:
                self._used.clear()
                self._kept = self._cast_of_probe()
            self._use(module, recurse=False)

    def _use(self, module: nn.Module, *, recurse: bool = True) -> None:
        for one in module.modules() if recurse else (module,):
            if isinstance(one, _NOT_CAST):
                continue
            for parameter in one.parameters(recurse=False):
                if parameter.requires_grad and parameter.dtype is torch.float32:
                    self._use_weight(parameter)

    def _use_weight(self, parameter: nn.Parameter) -> None:
        if parameter.ndim < 2:
            return
        if id(parameter) in self._used and torch.is_grad_enabled():
            self._used.clear()
            raise error(
                "cast-shared",
                f"the weight {self._names[id(parameter)]!r} is used by several calls in one "
                "context of autocast, which would keep one cast for all of them and add their "
                "gradients in its format; streamed weights are cast in each call",
                help="write torch.autocast(..., cache_enabled=False), in the plain loop too if the "
                "two are compared, or enter autocast for each forward",
            )
        self._used.add(id(parameter))

    @cached_property
    def _probe(self) -> nn.Parameter:
        return nn.Parameter(torch.zeros(1, 1, device=self._device.torch_device))

    def _cast_of_probe(self) -> int:
        """The number of the node that casts the probe: another one once casts were forgotten."""
        as_it_is = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
        with self._device.host_section(), torch.enable_grad(), as_it_is:
            product = torch.mm(self._probe, self._probe)
        assert product.grad_fn is not None
        cast = product.grad_fn.next_functions[0][0]
        assert cast is not None
        return cast._sequence_nr()  # noqa: SLF001 - no public name
