"""What a plain loop would find in its parameters, while weights and gradients are in the store."""

import math
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.loop.loop_records import LoopRecords
from openwafer.training.frontends.loop.parameters import Backing, StoredTensor, Values
from openwafer.training.step import kept_norms
from openwafer.training.store.layout import KEPT_PARTS, Part, flat
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.records import has_master, write_weight
from openwafer.training.torch_private import graph_task_id


class Aliases:
    """The memory of some parameters, by name.

    What is written there is the parameter's. So it is kept, as a plain loop's parameter keeps it,
    until :meth:`release` finds that nobody else holds it.
    """

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """The loop may hold the memory of a tensor, which is the parameter's."""
        self._memory[name] = tensor.detach()

    def drop(self, name: str) -> None:
        """What the loop may hold is no longer the parameter's."""
        self._memory.pop(name, None)

    def get(self, name: str) -> torch.Tensor | None:
        """The parameter's memory."""
        return self._memory.get(name)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from tuple(self._memory.items())

    def release(self) -> None:
        """Forget memory that is nobody else's; its values are in the store."""
        for name in tuple(self._memory):
            tensor = self._memory.pop(name)
            geometry = tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()
            held = weakref.ref(tensor.untyped_storage())
            del tensor
            storage = held()
            if storage is not None:
                dtype, *place = geometry
                empty = torch.empty(0, dtype=dtype, device=storage.device)
                self._memory[name] = empty.set_(storage, *place)


class GradientLedger:
    """Follows the gradients of a loop, which outlive the update until somebody zeroes them.

    Args:
        execution: runs the model.
        records: keep gradients until a step is completed.
        names: of the parameters of each optimizer.

    Attributes:
        looks_empty: whether code runs that may look and is to find nothing, as an optimizer's step.
    """

    def __init__(
        self,
        execution: StreamedExecution,
        records: LoopRecords,
        names: Mapping[Optimizer, Sequence[str]],
    ) -> None:
        self.looks_empty = False
        self._execution = execution
        self._records = records
        self._record_of = execution.executor.split.record_of
        self._names = {optimizer: frozenset(held) for optimizer, held in names.items()}
        self._trained = frozenset().union(*self._names.values())
        # Gradients that were applied, and whose bytes are still in the store.
        self._applied: set[str] = set()
        self._zeros: set[str] = set()
        # Gradients to which the updates of the last step write, which may be still to be made.
        self._spent: set[str] = set()
        # What gradients in the store are still to be multiplied by: a clip costs no write.
        self._factors: dict[str, float] = {}
        self._stepped: set[Optimizer] = set()
        execution.watch_gradients(self.note)

    @property
    def names(self) -> set[str]:
        """Parameters that have a gradient."""
        return self._records.kept | self._applied | self._zeros

    def has_gradient(self, name: str) -> bool:
        """Whether a plain loop would find a gradient."""
        if self.looks_empty:
            return False
        if graph_task_id() != -1:
            raise error(
                "streamed-gradient-read",
                f"the gradient of {name!r} is asked for while the backward pass runs, and what of "
                "it has come is on its way into the parameter store",
                help="read gradients after backward, or from the argument of a hook made with "
                "parameter.register_hook",
            )
        self.collect()
        return self._records.is_kept(name) or name in self._applied or name in self._zeros

    def collect(self) -> None:
        """Take up what a backward pass that failed has left in parameters."""
        if self._execution.executor.gradients.begun:
            self._execution.end_open_pass()

    # Values.

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and copies of all gradients, record by record."""
        wanted = self.names
        for record, names in self._execution.executor.split.records.items():
            held = [name for name in names if name in wanted]
            self._let_written(held)
            if held:
                with self._records.lent_in_pass(record, Part.GRADIENTS) as loan:
                    yield from [(name, self._copy(loan, name)) for name in held]

    def norms(self, norm_type: float) -> dict[str, torch.Tensor]:
        """Norms of all gradients by name, each taken where it is; zeros are in the store."""
        names, norm_dtype = self.names, self._execution.updater.norm_dtype
        self._let_written(names)
        factors = {name: self._factors.get(name, 1.0) for name in names}
        of_others = self._records.ask_norms(factors, norm_type)
        own: dict[str, torch.Tensor] = {}
        for record, held in self._execution.executor.split.records.items():
            here = {n: factors[n] for n in held if n in factors and self._records.is_here(n)}
            if here:
                with self._records.lent_in_pass(record, Part.GRADIENTS) as loan:
                    own |= kept_norms(loan, here, norm_type, norm_dtype)
        return own | of_others()

    def read(self, name: str) -> torch.Tensor:
        """A copy of a gradient, on the device."""
        self._let_written({name})
        device = self._execution.device.torch_device
        with self._records.lent_in_pass(self._record_of[name], Part.GRADIENTS) as loan:
            return self._copy(loan, name).to(device)

    def _copy(self, loan: Arrays, name: str) -> torch.Tensor:
        gradient = loan.tensor(name, Part.GRADIENTS).clone()
        if name in self._zeros:
            return gradient.zero_()
        return gradient.mul_(self._factors.get(name, 1.0))

    def write(self, name: str, gradient: torch.Tensor) -> None:
        """Give a parameter another gradient."""
        record = self._record_of[name]
        places = self._records.layouts[record].parts[Part.GRADIENTS]
        if all(place.spec.name != name for place in places):
            raise error(
                "gradient-without-room",
                f"{name!r} did not require a gradient when the run was planned, so that there is "
                "no room for one",
                help="call streamed.close(), unfreeze, and stream the model anew",
            )
        self._recall()
        self._records.write_gradient(name, gradient)
        self._factors.pop(name, None)
        self._zeros.discard(name)

    def scale(self, name: str, factor: float) -> bool:
        """Multiply a gradient when it is applied or read; whether that is as good as at once."""
        if self._execution.updater.keeps_masters:
            # A bf16 gradient would be rounded; on its way to an fp32 master it is not.
            return False
        self.multiply((name,), factor)
        return True

    def multiply(self, names: Iterable[str], factor: float) -> None:
        """Multiply gradients when they are applied or read."""
        self._recall()
        if factor != 1.0:
            self._write_factors(names)
            self._factors.update(dict.fromkeys(names, factor))

    def unscale(self, optimizer: Optimizer, scale: float) -> None:
        """Divide the gradients of an optimizer by the scale of its loss."""
        held = self._names[optimizer] & self._records.kept
        if math.frexp(scale)[0] == 0.5:
            # The quotient by a power of two is the product with its inverse, bit for bit.
            self.multiply(held, 1.0 / scale)
        else:
            for name in held:
                self.write(name, self.read(name).div_(scale))

    def refuse_second_clip(self) -> None:
        """Raise ``clipped-twice`` where gradients of the step under way are to be multiplied."""
        is_clipped = any(name not in self._applied for name in self._factors)
        if self._execution.updater.keeps_masters and is_clipped:
            raise error(
                "clipped-twice",
                "the gradients of this step are clipped already, and fp32 masters are updated by "
                "gradients that are multiplied once",
                help="call streamed.clip_grad_norm_ once between backward and optimizer.step()",
            )

    def _write_factors(self, names: Iterable[str]) -> None:
        by_record: dict[str, list[str]] = {}
        for name in self._factors.keys() & names:
            by_record.setdefault(self._record_of[name], []).append(name)
        for record, held in by_record.items():
            lent = self._records.lent_in_pass(record, Part.GRADIENTS, changes=True)
            with lent as loan, torch.no_grad():
                for name in held:
                    loan.tensor(name, Part.GRADIENTS).mul_(self._factors.pop(name))

    def _recall(self) -> None:
        """Let gradients that were applied be as those that were not; no update is due then."""
        self._records.flush()
        self._records.keep(self._applied)
        self._applied.clear()

    def _written_by_steps(self) -> set[str]:
        updater = self._execution.updater
        # Masters have gradients of their own, in fp32, of which nothing is kept.
        writing = () if updater.keeps_masters else filter(updater.writes_gradients, self._names)
        return set().union(*(self._names[optimizer] for optimizer in writing))

    def _let_written(self, names: Iterable[str]) -> None:
        """Let the updates be made that write to these gradients."""
        if not self._spent.isdisjoint(names):
            self._records.flush()
            self._spent.clear()

    # What the loop does.

    def forget(self, name: str) -> None:
        """``parameter.grad = None``."""
        self._records.discard({name})
        self._applied.discard(name)
        self._spent.discard(name)
        self._zeros.discard(name)
        self._factors.pop(name, None)

    def zeroed_by(self, optimizer: Optimizer | None) -> set[str]:
        """Parameters whose gradients ``zero_grad`` of an optimizer, or of the model, zeroes."""
        return self.names & (self.names if optimizer is None else self._names[optimizer])

    def zero(self, names: Iterable[str], *, leaves_zeros: bool) -> None:
        """``zero_grad``."""
        zeroed = set(names)
        self._records.discard(zeroed)
        self._applied -= zeroed
        self._spent -= zeroed
        self._zeros = self._zeros | zeroed if leaves_zeros else self._zeros - zeroed
        for name in self._factors.keys() & zeroed:
            del self._factors[name]

    def begin_backward(self) -> None:
        """Gradients of before are in the store when others come to be added to them."""
        self.looks_empty = False
        self._recall()
        if self._factors and self._execution.updater.keeps_masters:
            raise error(
                "gradient-after-clip",
                "a backward has come after the gradients of this step were clipped, and fp32 "
                "masters are updated by gradients that are multiplied once",
                help="call clip_grad_norm_ after the last backward of a step",
            )
        self._write_factors(tuple(self._factors))

    def note(self, gradients: Collection[str]) -> None:
        """Gradients of these parameters have come."""
        self._zeros.difference_update(gradients)
        if self._stepped:
            raise error(
                "optimizers-apart",
                f"{len(self._stepped)} of {len(self._names)} optimizers have taken the step when "
                "the next backward came",
                help="step all optimizers of a model after its backward, or make models of its "
                "parts that are streamed each with its own optimizer",
            )

    def fill_zeros(self) -> None:
        """Gradients of zeros that ``zero_grad`` left are gradients like others from now on."""
        for name in sorted(self._zeros):
            parameter = self._execution.executor.weights.parameters[name]
            self.write(name, torch.zeros(parameter.shape, dtype=parameter.dtype))

    def step(self, optimizer: Optimizer) -> None:
        """Complete a step with the last of its optimizers."""
        self._stepped.add(optimizer)
        if len(self._stepped) < len(self._names):
            return
        self._stepped.clear()
        self._recall()
        self.fill_zeros()
        kept = self._records.kept
        if kept:
            self._spent = kept & self._written_by_steps()
            factors = {self._factors.get(name, 1.0) for name in kept & self._trained}
            if len(factors) > 1 or self._spent:
                self._write_factors(kept)
                factors.clear()
            self._records.complete_step(factors.pop() if factors else 1.0)
            self._applied = kept
            # Fused kernels write without counting versions up, so that a plain loop goes on.
            counted = () if optimizer.defaults.get("fused") else kept
            self._execution.executor.weights.note_update(self._record_of[name] for name in counted)


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
