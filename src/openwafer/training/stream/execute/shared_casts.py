"""Finds weights that a plain loop would cast once, for several calls of layers.

Autocast keeps a cast of a weight until its outermost context ends, unless it is told not to. The
gradients of all uses of that cast are then added in its own format, and not in the weight's. A
streamed weight leaves the device between two layers, and its cast with it.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from openwafer.diagnostics import error
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.weights import OWN_DATA
from openwafer.training.stream.execute.open_contexts import autocast_depth
from openwafer.training.stream.execute.reach import names_autocast
from openwafer.training.stream.layers import PINNED, Partition
from openwafer.training.torch_private import DisableTorchFunctionSubclass

# Autocast leaves embeddings alone.
_NOT_CAST: Final = (nn.Embedding, nn.EmbeddingBag)


class SharedCasts:
    """Looks at the calls of layers, and at pinned weights between them.

    Args:
        model: names the weights.
        split: tells which are pinned.
        device: where it runs.
        is_checking: whether it looks.
    """

    def __init__(
        self, model: nn.Module, split: Partition, device: Device, *, is_checking: bool
    ) -> None:
        self._is_checking = is_checking
        self._model = model
        parameters = dict(model.named_parameters())
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._pinned = [parameters[name] for name in split.records.get(PINNED, ())]
        self._device = device
        self._may_enter: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        # What autograd calls the cast of the probe that autocast keeps.
        self._kept = -1
        self._used: set[int] = set()

    def leaving_none(self, module: nn.Module | None) -> AbstractContextManager[None]:
        """Context of a call, after which no cast is kept.

        Args:
            module: is called; ``None`` where a call is only repeated.

        Raises:
            OpenwaferError: ``cast-shared``.
        """
        # Outside of autocast nothing is kept.
        return self._leaving_none(module) if autocast_depth() else nullcontext()

    @contextmanager
    def _leaving_none(self, module: nn.Module | None) -> Iterator[None]:
        is_looking = self._is_looking
        if is_looking:
            self._begin(module)
        try:
            yield
            if is_looking and module is not None:
                self._note_kept([*self._pinned, *self._casts_inside(module)])
        finally:
            torch.clear_autocast_cache()
            if is_looking:
                self._kept = self._cast_of_probe()

    def stop(self) -> frozenset[int]:
        """The forward stops for others that have casts of their own; returns what it has cast."""
        if self._is_looking:
            self._begin(None)
        torch.clear_autocast_cache()
        return frozenset(self._used)

    def go_on(self, used: frozenset[int] = frozenset()) -> None:
        """A forward that has cast these begins, or goes on behind others."""
        torch.clear_autocast_cache()
        self._used = set(used)
        if self._is_looking:
            self._kept = self._cast_of_probe()

    @property
    def _is_looking(self) -> bool:
        is_inside = self._is_checking and autocast_depth() > 0
        return is_inside and (torch.is_autocast_cache_enabled() or self._may_be_entered)

    @cached_property
    def _may_be_entered(self) -> bool:
        """Whether the model's code can enter autocast."""
        return names_autocast(self._model)

    def _begin(self, module: nn.Module | None) -> None:
        if self._cast_of_probe() != self._kept:
            self._used.clear()
        self._note_kept(self._pinned)
        torch.clear_autocast_cache()
        # The layer may be run again before its call ends.
        self._kept = self._cast_of_probe()
        if module is not None and self._keeps_casts:
            pinned = set(map(id, self._pinned))
            for one in module.modules():
                if not isinstance(one, _NOT_CAST):
                    for parameter in one.parameters(recurse=False):
                        if id(parameter) not in pinned and parameter.ndim > 1:
                            self._use(parameter)

    @property
    def _keeps_casts(self) -> bool:
        """Whether autocast is on and keeps casts."""
        is_on = torch.is_autocast_enabled(self._device.torch_device.type)
        return is_on and torch.is_autocast_cache_enabled()

    def _casts_inside(self, module: nn.Module) -> Iterable[nn.Parameter]:
        """Weights that a layer may have cast under autocast of its own."""
        if self._keeps_casts:
            return ()
        may_enter = self._may_enter.get(module)
        if may_enter is None:
            may_enter = self._may_enter[module] = names_autocast(module)
        return module.parameters() if may_enter else ()

    def _note_kept(self, weights: Iterable[nn.Parameter]) -> None:
        for weight in weights:
            if _may_be_cast(weight) and self._is_kept(weight):
                self._use(weight)

    def _use(self, weight: nn.Parameter) -> None:
        if not _may_be_cast(weight):
            return
        if id(weight) in self._used and torch.is_grad_enabled():
            self._used.clear()
            raise error(
                "cast-shared",
                f"the weight {self._names[id(weight)]!r} is used by several calls in one "
                "context of autocast, which would keep one cast for all of them and add their "
                "gradients in its format; streamed weights are cast in each call",
                help="write torch.autocast(..., cache_enabled=False), in the plain loop too if the "
                "two are compared, or enter autocast for each forward",
            )
        self._used.add(id(weight))

    def _keeping(self) -> torch.autocast:
        return torch.autocast(
            self._device.torch_device.type, torch.bfloat16, enabled=True, cache_enabled=True
        )

    def _is_kept(self, weight: nn.Parameter) -> bool:
        """Whether autocast keeps a cast of a weight: it is then used in the weight's place."""
        data = OWN_DATA.__get__(weight)
        nothing = torch.empty(0, 0, dtype=weight.dtype, device=data.device)
        # A weight that is away would be read from the store.
        as_it_is = DisableTorchFunctionSubclass()
        with self._device.host_section(), torch.no_grad(), self._keeping(), as_it_is:
            OWN_DATA.__set__(weight, nothing)
            try:
                torch.mm(weight, nothing)
            except RuntimeError:
                return True
            finally:
                OWN_DATA.__set__(weight, data)
        return False

    @cached_property
    def _probe(self) -> nn.Parameter:
        return nn.Parameter(torch.zeros(1, 1, device=self._device.torch_device))

    def _cast_of_probe(self) -> int:
        """The number of the node that casts the probe: another one once casts were forgotten."""
        as_it_is = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
        with self._device.host_section(), torch.enable_grad(), as_it_is, self._keeping():
            product = torch.mm(self._probe, self._probe)
        assert product.grad_fn is not None
        cast = product.grad_fn.next_functions[0][0]
        assert cast is not None
        return cast._sequence_nr()  # noqa: SLF001 - no public name


def _may_be_cast(weight: nn.Parameter) -> bool:
    return weight.requires_grad and weight.dtype is torch.float32
