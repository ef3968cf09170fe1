"""What a layer sees and changes beside its arguments, and sees again when it runs again."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final
from weakref import ReferenceType, ref

from torch import nn

from openwafer.training.stream.execute.snapshot import Snapshot, draws_beside_torch
from openwafer.training.torch_private import NormBase

# What torch keeps in a module beside what the module's own code puts there.
_OF_TORCH: Final = frozenset(vars(nn.Module())) - {"_buffers"}


def norms_with_statistics(module: nn.Module) -> list[NormBase]:
    """The modules within one that keep running statistics of what goes through them."""
    return [
        inner
        for inner in module.modules()
        if isinstance(inner, NormBase) and inner.track_running_stats
    ]


class LayerState:
    """Attributes and buffers of a layer's modules: plain values, containers, arrays, tensors.

    Args:
        module: the layer.
        passed_over: what is in its modules and none of its state.

    Attributes:
        is_rehearsed: whether the layer has run a second time as it ran the first.
        refusal: why it could not run again, once that was tried.
    """

    def __init__(self, module: nn.Module, passed_over: frozenset[str] = _OF_TORCH) -> None:
        self._module = module
        self._passed_over = passed_over
        self._latest: Snapshot | None = None
        self._latest_with_tensors: ReferenceType[Snapshot] | None = None
        self.is_rehearsed = False
        # Their kernels write without counting versions up, and fake tensors have nothing else.
        self._keeps_statistics = bool(norms_with_statistics(module))
        self.refusal: str | None = None

    def now(self) -> Snapshot:
        """The present state: the last one while nothing has changed since."""
        held = self._latest_with_tensors
        latest = self._latest if held is None else held()
        if latest is None or self._keeps_statistics or not latest.is_current():
            latest = Snapshot(_held_by(self._module), passed_over=self._passed_over)
            # Copies of tensors take device memory, so that they live only as long as a call's.
            has_tensors = latest.holds_tensors
            self._latest = None if has_tensors else latest
            self._latest_with_tensors = ref(latest) if has_tensors else None
        return latest

    @cached_property
    def draws_beside_torch(self) -> bool:
        """Whether the layer's code can draw from the generators of Python or NumPy."""
        return draws_beside_torch(self._module)

    @contextmanager
    def as_it_was(self, before: Snapshot) -> Iterator[frozenset[int]]:
        """Context in which the layer sees an earlier state; afterwards, the present one again.

        Yields:
            Storages of tensors that are written to for that, as the numbers torch has for them.
        """
        present, beside = self.now(), None
        if present is not before:
            beside = before.again(present)
            before.put_back()
        try:
            yield frozenset() if beside is None else before.storages() | present.storages()
        finally:
            if beside is not None:
                beside.put_back()
            present.put_back()


def _held_by(module: nn.Module) -> Iterator[tuple[str, object]]:
    for name, inner in module.named_modules():
        # The dictionaries themselves: what is put back is what they hold.
        yield name, vars(inner)
