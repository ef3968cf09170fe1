"""What a loop would find in its parameters, as backings in the parameter store."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from weakref import WeakValueDictionary

import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.frontends.loop.gradient_ledger import GradientLedger
from openwafer.training.frontends.loop.loop_records import LoopRecords
from openwafer.training.frontends.loop.memory_alias import Aliases
from openwafer.training.frontends.loop.stored_tensor import Backing, StoredTensor, Values
from openwafer.training.store.layout import KEPT_PARTS, Part, flat
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.records import has_master, write_weight


class StoredValues:
    """Reads and writes weights and gradients where they are, one tensor at a time.

    A tensor that the loop puts in the place of weights or of a gradient is copied into the store,
    and who asks for the memory of weights is given a copy of them. As long as the loop holds that
    memory it and the store are kept equal, as in a plain loop they are one.

    Args:
        execution: streams the weights.
        records: have their values.
        parameters: by name.
        ledger: knows the gradients.

    Attributes:
        shown: given the name and the values of a gradient that the loop reads.
    """

    def __init__(
        self,
        execution: StreamedExecution,
        records: LoopRecords,
        parameters: Mapping[str, nn.Parameter],
        ledger: GradientLedger,
    ) -> None:
        self._execution = execution
        self._records = records
        self._parameters = parameters
        self._ledger = ledger
        self.shown: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, gradient: gradient
        self._record_of = execution.executor.split.record_of
        # What somebody holds.
        self._weights: WeakValueDictionary[tuple[str, torch.device], Backing] = (
            WeakValueDictionary()
        )
        self._gradients: WeakValueDictionary[str, Backing] = WeakValueDictionary()
        self._weight_aliases = Aliases()
        self._gradient_aliases = Aliases()

    def end(self) -> None:
        """Weights and gradients are in the parameters again, and what somebody holds is, too."""
        for (name, _), backing in self._weights.items():
            backing.leave(self._parameters[name].detach())
        for name, backing in self._gradients.items():
            gradient = self._parameters[name].grad
            assert gradient is not None
            backing.leave(gradient)

    def given_memory(self, name: str, weights: torch.Tensor) -> torch.Tensor:
        """Memory for weights that leave the store: what the loop gave for them, or new."""
        alias = self._weight_aliases.get(name)
        return weights.clone() if alias is None else alias

    @property
    def _device(self) -> torch.device:
        return self._execution.device.torch_device

    def _like(self, name: str) -> torch.Tensor:
        layout = self._records.layouts[self._record_of[name]]
        return layout.place(name, Part.WEIGHTS).spec.empty("meta")

    # Weights.

    def weights(self, name: str, device: torch.device | None = None) -> Backing:
        """The weights of a parameter, as a plain loop would have them on a device."""
        device = device or self._device
        backing = self._weights.get((name, device))
        if backing is None:
            values = Values(
                partial(self._read_weights, name, device),
                partial(self.write_weights, name),
                memory=partial(self._weights_in_memory, name, device),
            )
            backing = Backing(f"the weight {name!r}", self._like(name), device, values)
            self._weights[name, device] = backing
        return backing

    def _read_weights(self, name: str, device: torch.device) -> torch.Tensor:
        alias = self._weight_aliases.get(name)
        return self._stored_weights(name, device) if alias is None else alias.to(device)

    def _weights_in_memory(self, name: str, device: torch.device) -> torch.Tensor | None:
        """Memory that is the parameter's from now on, as if the loop had given it."""
        alias = self._weight_aliases.get(name)
        if alias is None:
            alias = self._stored_weights(name, device)
            self._weight_aliases.add(name, alias)
        return alias if alias.device == device else None

    def _stored_weights(self, name: str, device: torch.device) -> torch.Tensor:
        with self._lent_weights(name) as weights:
            return weights.to(device, copy=True)

    @contextmanager
    def _lent_weights(self, name: str) -> Iterator[torch.Tensor]:
        self._records.flush()
        with self._records.lent_in_pass(self._record_of[name], Part.WEIGHTS) as loan:
            yield loan.tensor(name, Part.WEIGHTS)

    def write_weights(self, name: str, value: torch.Tensor) -> None:
        """Give a parameter other weights; fp32 ones are the master, where there is one."""
        alias = self._weight_aliases.get(name)
        if alias is not None:
            alias.copy_(value)
        self._records.settle()
        self._execution.executor.weights.num_writes += 1
        records, record = self._records, self._record_of[name]
        keeps_master = has_master(records.layouts[record], name)
        changed = KEPT_PARTS if keeps_master else (Part.WEIGHTS,)
        with records.lent(record, changed) as loan, torch.no_grad():
            write_weight(loan, name, value, keeps_master=keeps_master)

    def replace_weights(self, name: str, value: torch.Tensor) -> None:
        """``parameter.data = value``: whoever holds the weights of before keeps them."""
        places = [(name, device) for device in {self._device, torch.device("cpu")}]
        held = {place: self._weights[place] for place in places if place in self._weights}
        if isinstance(value, StoredTensor):
            if value.backing in held.values():
                return
            value = _own_memory(value)
        _check_like(f"{name}.data", self._parameters[name], value)
        for place, backing in held.items():
            backing.leave()
            del self._weights[place]
        self._weight_aliases.drop(name)
        self.write_weights(name, value)
        self._weight_aliases.add(name, value)

    def take_weights(self) -> None:
        """Weights are about to be used: they are what the loop has made of tensors that it gave."""
        with self._execution.device.host_section():
            for name, alias in self._weight_aliases:
                with self._lent_weights(name) as weights:
                    is_written = not _are_same_bits(weights, alias.to(weights.device))
                if is_written:
                    self.write_weights(name, alias)
            self._weight_aliases.release()

    def give_weights(self) -> None:
        """Weights are updated, and so are the tensors that the loop gave for them."""
        for name, alias in self._weight_aliases:
            with self._lent_weights(name) as weights:
                alias.copy_(weights)

    # Gradients.

    def gradient(self, name: str) -> StoredTensor | None:
        """``parameter.grad``."""
        if not self._ledger.has_gradient(name):
            return None
        backing = self._gradients.get(name)
        if backing is None:
            values = Values(
                partial(self._read_gradient, name),
                partial(self._write_gradient, name),
                partial(self._scale_gradient, name),
            )
            what = f"the gradient of {name!r}"
            backing = Backing(what, self._like(name), self._device, values)
            self._gradients[name] = backing
        return backing.whole()

    def _read_gradient(self, name: str) -> torch.Tensor:
        alias = self._gradient_aliases.get(name)
        return self.shown(name, self._ledger.read(name)) if alias is None else alias

    def _write_gradient(self, name: str, value: torch.Tensor) -> None:
        alias = self._gradient_aliases.get(name)
        if alias is not None:
            alias.copy_(value)
        self._ledger.write(name, value)

    def _scale_gradient(self, name: str, factor: float) -> bool:
        return self._gradient_aliases.get(name) is None and self._ledger.scale(name, factor)

    def set_gradient(self, name: str, gradient: torch.Tensor | None) -> None:
        """``parameter.grad = gradient``."""
        if isinstance(gradient, StoredTensor):
            if gradient.backing is self._gradients.get(name):
                return
            gradient = _own_memory(gradient)
        if gradient is not None:
            _check_like(f"{name}.grad", self._parameters[name], gradient)
        self.leave_gradients((name,))
        self._ledger.forget(name)
        if gradient is not None:
            self._ledger.write(name, gradient)
            self._gradient_aliases.add(name, gradient)

    def take_gradients(self) -> None:
        """Gradients are about to be used: they are what the loop has made of those that it gave."""
        with self._execution.device.host_section():
            for name, alias in self._gradient_aliases:
                self._ledger.write(name, alias)
            self._gradient_aliases.release()

    def give_gradients(self) -> None:
        """Gradients have changed, and so have the tensors that the loop gave for them."""
        with self._execution.device.host_section():
            for name, alias in self._gradient_aliases:
                alias.copy_(self._ledger.read(name))

    def held_gradient(self, name: str) -> torch.Tensor | None:
        """What the loop gave for a gradient, and may still hold."""
        return self._gradient_aliases.get(name)

    def zero_gradients(self, names: Collection[str]) -> None:
        """Gradients are about to be zeroed in place, and so are the tensors that the loop gave."""
        for name, alias in self._gradient_aliases:
            if name in names:
                alias.zero_()

    def leave_gradients(self, names: Iterable[str]) -> None:
        """Gradients are about to be forgotten: who holds one keeps it."""
        for name in sorted(names):
            backing = self._gradients.get(name)
            if backing is not None:
                backing.leave()
                del self._gradients[name]
            self._gradient_aliases.drop(name)


def _are_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(flat(one).view(torch.uint8), flat(other).view(torch.uint8))


def _own_memory(value: StoredTensor) -> torch.Tensor:
    if value.backing.is_stored:
        raise error(
            "streamed-memory-shared",
            f"{value.backing.name} is in the parameter store, and shares memory with nothing",
            help="give a copy, with .clone()",
        )
    own = flat(value.backing.tensor()).view(value.dtype)
    return own.as_strided(value.size(), value.stride(), value.storage_offset())


def _check_like(what: str, parameter: nn.Parameter, value: torch.Tensor) -> None:
    found = tuple(value.shape), value.dtype, value.device, value.stride()
    wanted = tuple(parameter.shape), parameter.dtype, parameter.device, parameter.stride()
    is_laid_out = found[3] == wanted[3] or (value.is_contiguous() and parameter.is_contiguous())
    if found[:3] != wanted[:3] or not is_laid_out:
        raise error(
            "streamed-value-unlike",
            f"{what} was given {_shown(*found)}, and the parameter store keeps {_shown(*wanted)}",
            help="give a tensor of that kind and those strides, or call streamed.close(), change "
            "the model, and stream it anew",
        )


def _shown(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, strides: tuple[int, ...]
) -> str:
    return f"{shape} {dtype} on {device} with the strides {strides}"
