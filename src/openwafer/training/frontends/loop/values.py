"""Where a loop's weights and gradients are: in the records, and in memory that the loop may hold.

A tensor that the loop puts in the place of weights or of a gradient is copied into the store, and
who asks for the memory of weights is given a copy of them. As long as the loop holds that memory it
and the store are kept equal, as in a plain loop they are one.
"""

import math
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.loop.loop_records import LoopRecords
from openwafer.training.frontends.loop.loop_systems import LoopSystems, refuse_other_gradient
from openwafer.training.frontends.loop.parameters import (
    Backing,
    GradientsHome,
    HeldBackings,
    StoredTensor,
    Values,
    WeightsHome,
)
from openwafer.training.step import clip, kept_norms
from openwafer.training.store.layout import KEPT_PARTS, Part, flat
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.records import has_master, write_weight
from openwafer.training.torch_private import execution_engine, graph_task_id

K = TypeVar("K")


class Aliases(Generic[K]):
    """The memory of some tensors that are in the store, by name.

    What is written there is the tensor's. So it is kept, as a plain loop's tensor keeps it,
    until :meth:`release` finds that nobody else holds it.
    """

    def __init__(self) -> None:
        self._memory: dict[K, torch.Tensor] = {}

    def add(self, name: K, tensor: torch.Tensor) -> None:
        """The loop may hold the memory of a tensor, which is the stored one's."""
        self._memory[name] = tensor.detach()

    def drop(self, name: K) -> None:
        """What the loop may hold is no longer the stored one's."""
        self._memory.pop(name, None)

    def get(self, name: K) -> torch.Tensor | None:
        """The memory of a name."""
        return self._memory.get(name)

    def __iter__(self) -> Iterator[tuple[K, torch.Tensor]]:
        yield from tuple(self._memory.items())

    def release(self) -> None:
        """Forget memory that is nobody else's; its values are in the store."""
        for name in tuple(self._memory):
            tensor = self._memory.pop(name)
            dtype, offset = tensor.dtype, tensor.storage_offset()
            size, strides = tensor.size(), tensor.stride()
            held = weakref.ref(tensor.untyped_storage())
            del tensor
            storage = held()
            if storage is not None:
                empty = torch.empty(0, dtype=dtype, device=storage.device)
                self._memory[name] = empty.set_(storage, offset, size, strides)


class StoredWeights(WeightsHome):
    """The weights of a loop, in the records.

    Args:
        execution: streams them.
        records: have their values.
        parameters: by name.
    """

    def __init__(
        self,
        execution: StreamedExecution,
        records: LoopRecords,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        self._execution = execution
        self._device = execution.device.torch_device
        self._records = records
        self._parameters = parameters
        self._held = HeldBackings[tuple[str, torch.device]]()
        self._aliases = Aliases[str]()

    def get(self, name: str, device: torch.device | None = None) -> Backing:
        """The weights of a parameter, as a plain loop would have them on a device."""
        place = device or self._device
        return self._held.made((name, place), partial(self._backing, name, place))

    def _backing(self, name: str, device: torch.device) -> Backing:
        values = Values(
            partial(self._read, name, device),
            partial(self.write, name),
            memory=partial(self._in_memory, name, device),
        )
        return Backing(f"the weight {name!r}", self._records.like(name), device, values)

    def _read(self, name: str, device: torch.device) -> torch.Tensor:
        alias = self._aliases.get(name)
        return self._copy(name, device) if alias is None else alias.to(device)

    def _in_memory(self, name: str, device: torch.device) -> torch.Tensor | None:
        """Memory that is the parameter's from now on, as if the loop had given it."""
        alias = self._aliases.get(name)
        if alias is None:
            alias = self._copy(name, device)
            self._aliases.add(name, alias)
        return alias if alias.device == device else None

    def _copy(self, name: str, device: torch.device) -> torch.Tensor:
        with self._lent(name) as weights:
            return weights.to(device, copy=True)

    @contextmanager
    def _lent(self, name: str) -> Iterator[torch.Tensor]:
        self._records.flush()
        with self._records.lent(
            self._records.record_of[name], (Part.WEIGHTS,), read_only=True
        ) as loan:
            yield loan.tensor(name, Part.WEIGHTS)

    def write(self, name: str, value: torch.Tensor) -> None:
        """Give a parameter other weights; fp32 ones are the master, where there is one."""
        alias = self._aliases.get(name)
        if alias is not None:
            alias.copy_(value)
        self._records.settle()
        self._execution.executor.weights.num_writes += 1
        records, record = self._records, self._records.record_of[name]
        keeps_master = has_master(records.layouts[record], name)
        changed = KEPT_PARTS if keeps_master else (Part.WEIGHTS,)
        with records.lent(record, changed) as loan, torch.no_grad():
            write_weight(loan, name, value, keeps_master=keeps_master)

    def replace(self, name: str, value: torch.Tensor) -> None:
        """``parameter.data = value``: whoever holds the weights of before keeps them."""
        places = [(name, device) for device in {self._device, torch.device("cpu")}]
        if isinstance(value, StoredTensor):
            if any(value.backing is self._held.get(place) for place in places):
                return
            value = _own_memory(value)
        _check_like(f"{name}.data", self._parameters[name], value)
        for place in places:
            self._held.leave(place)
        self._aliases.drop(name)
        self.write(name, value)
        self._aliases.add(name, value)

    def take(self) -> None:
        """Weights are about to be used: they are what the loop has made of tensors that it gave."""
        with self._execution.device.host_section():
            for name, alias in self._aliases:
                with self._lent(name) as weights:
                    is_written = not are_same_bits(weights, alias.to(weights.device))
                if is_written:
                    self.write(name, alias)
            self._aliases.release()

    def give(self) -> None:
        """Weights are updated, and so are the tensors that the loop gave for them."""
        for name, alias in self._aliases:
            with self._lent(name) as weights:
                alias.copy_(weights)

    def in_parameter(self, name: str, weights: torch.Tensor) -> torch.Tensor:
        """Memory for weights that leave the store: what the loop gave for them, or new."""
        alias = self._aliases.get(name)
        return weights.clone() if alias is None else alias

    def end(self) -> None:
        """The weights are in the parameters again, and what somebody holds is, too."""
        for (name, _), backing in self._held.items():
            backing.leave(self._parameters[name].detach())


class StoredGradients(GradientsHome):
    """What a plain loop would find in ``parameter.grad``, while the gradients are in the records.

    A gradient is kept there until the step is completed; then it was applied, and its bytes stay
    until somebody zeroes it. ``zero_grad`` may leave zeros, which have no bytes.

    Args:
        execution: runs the model.
        records: keep gradients until a step is completed.
        parameters: by name.
        names: of the parameters of each optimizer.
        systems: those that read the gradients, where there are several.

    Attributes:
        looks_empty: whether code runs that may look and is to find nothing, as an optimizer's step.
    """

    def __init__(
        self,
        execution: StreamedExecution,
        records: LoopRecords,
        parameters: Mapping[str, nn.Parameter],
        names: Mapping[Optimizer, Sequence[str]],
        systems: LoopSystems | None,
    ) -> None:
        self.looks_empty = False
        self._execution = execution
        self._records = records
        self._record_of = records.record_of
        self._parameters = parameters
        self._names = {optimizer: frozenset(held) for optimizer, held in names.items()}
        self._trained = frozenset().union(*self._names.values())
        self._systems = systems
        self._held = HeldBackings[str]()
        self._aliases = Aliases[str]()
        self._applied: set[str] = set()
        self._zeros: set[str] = set()
        # Those to which the updates of the last step write, which may be still to be made.
        self._spent: set[str] = set()
        # What gradients in the store are still to be multiplied by: a clip costs no write.
        self._factors: dict[str, float] = {}
        self._stepped: set[Optimizer] = set()
        execution.watch_gradients(self.note)

    @property
    def names(self) -> set[str]:
        """Parameters that have a gradient."""
        return self._records.kept | self._applied | self._zeros

    # What a parameter shows.

    def get(self, name: str) -> StoredTensor | None:
        """``parameter.grad``."""
        if not self._has(name):
            return None
        return self._held.made(name, partial(self._backing, name)).whole()

    def _has(self, name: str) -> bool:
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
        self._collect()
        return self._records.is_kept(name) or name in self._applied or name in self._zeros

    def _collect(self) -> None:
        """Take up what a backward pass that failed has left in parameters."""
        if self._execution.executor.gradients.begun:
            self._execution.end_open_pass()

    def _backing(self, name: str) -> Backing:
        read, write = partial(self._show, name), partial(self._copy_into, name)
        values = Values(read, write, partial(self._scale, name))
        device = self._execution.device.torch_device
        return Backing(f"the gradient of {name!r}", self._records.like(name), device, values)

    def _show(self, name: str) -> torch.Tensor:
        alias = self._aliases.get(name)
        if alias is not None:
            return alias
        gradient = self._read(name)
        return gradient if self._systems is None else self._systems.shown(name, gradient)

    def _copy_into(self, name: str, value: torch.Tensor) -> None:
        alias = self._aliases.get(name)
        if alias is not None:
            alias.copy_(value)
        self._write(name, value)

    def _scale(self, name: str, factor: float) -> bool:
        """Multiply a gradient when it is applied or read, if that is as good as at once.

        A bf16 gradient would be rounded; on its way to an fp32 master it is not.
        """
        if self._aliases.get(name) is not None or self._execution.updater.keeps_masters:
            return False
        self._multiply((name,), factor)
        return True

    def put(self, name: str, gradient: torch.Tensor | None) -> None:
        """``parameter.grad = gradient``."""
        if self._systems is not None:
            refuse_other_gradient(name, gradient)
        if isinstance(gradient, StoredTensor):
            if gradient.backing is self._held.get(name):
                return
            gradient = _own_memory(gradient)
        if gradient is not None:
            _check_like(f"{name}.grad", self._parameters[name], gradient)
        self._leave({name})
        self._forget({name})
        if gradient is not None:
            self._write(name, gradient)
            self._aliases.add(name, gradient)

    def note_outside(self, name: str) -> None:
        self._execution.executor.log.unplanned.append(name)

    # In the records.

    def all(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and gradients, record by record: what the loop gave for them, or copies."""
        self._execution.end_open_pass()
        self.take()
        wanted = self.names
        for record, names in self._execution.executor.split.records.items():
            held = [name for name in names if name in wanted]
            self._let_written(held)
            if held:
                with self._records.lent(record, (Part.GRADIENTS,), read_only=True) as loan:
                    copies = [(name, self._copy(loan, name)) for name in held]
                for name, copied in copies:
                    alias = self._aliases.get(name)
                    yield name, copied if alias is None else alias

    def _read(self, name: str) -> torch.Tensor:
        """A copy of a gradient, on the device."""
        self._let_written({name})
        device = self._execution.device.torch_device
        with self._records.lent(self._record_of[name], (Part.GRADIENTS,), read_only=True) as loan:
            return self._copy(loan, name).to(device)

    def _copy(self, loan: Arrays, name: str) -> torch.Tensor:
        gradient = loan.tensor(name, Part.GRADIENTS).clone()
        if name in self._zeros:
            return gradient.zero_()
        return gradient.mul_(self._factors.get(name, 1.0))

    def _write(self, name: str, gradient: torch.Tensor) -> None:
        """Give a parameter another gradient."""
        places = self._records.layouts[self._record_of[name]].parts[Part.GRADIENTS]
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

    def _multiply(self, names: Iterable[str], factor: float) -> None:
        """Multiply gradients when they are applied or read."""
        self._recall()
        if factor != 1.0:
            self._write_factors(names)
            self._factors.update(dict.fromkeys(names, factor))

    def _write_factors(self, names: Iterable[str]) -> None:
        by_record: dict[str, list[str]] = {}
        for name in self._factors.keys() & names:
            by_record.setdefault(self._record_of[name], []).append(name)
        for record, held in by_record.items():
            with self._records.lent(record, (Part.GRADIENTS,)) as loan, torch.no_grad():
                for name in held:
                    loan.tensor(name, Part.GRADIENTS).mul_(self._factors.pop(name))

    def _recall(self) -> None:
        """Let gradients that were applied be as those that were not; no update is due then."""
        self._records.flush()
        self._records.keep(self._applied)
        self._applied.clear()

    def _let_written(self, names: Iterable[str]) -> None:
        """Let the updates be made that write to these gradients."""
        if not self._spent.isdisjoint(names):
            self._records.flush()
            self._spent.clear()

    def _fill_zeros(self) -> None:
        """Gradients of zeros that ``zero_grad`` left are gradients like others from now on."""
        for name in sorted(self._zeros):
            parameter = self._parameters[name]
            self._write(name, torch.zeros(parameter.shape, dtype=parameter.dtype))

    def _forget(self, names: set[str]) -> None:
        self._records.discard(names)
        for held in (self._applied, self._spent, self._zeros):
            held.difference_update(names)
        for name in self._factors.keys() & names:
            del self._factors[name]

    # In memory that the loop holds.

    def take(self) -> None:
        """Gradients are about to be used: they are what the loop has made of those that it gave."""
        with self._execution.device.host_section():
            for name, alias in self._aliases:
                self._write(name, alias)
            self._aliases.release()

    def _give(self) -> None:
        """Gradients have changed, and so have the tensors that the loop gave for them."""
        with self._execution.device.host_section():
            for name, alias in self._aliases:
                alias.copy_(self._read(name))

    def _leave(self, names: Iterable[str]) -> None:
        """Gradients are about to be forgotten: who holds one keeps it."""
        for name in sorted(names):
            self._held.leave(name)
            self._aliases.drop(name)

    def end(self) -> None:
        """The gradients are in the parameters again, and what somebody holds is, too."""
        for name, backing in self._held.items():
            gradient = self._parameters[name].grad
            assert gradient is not None
            backing.leave(gradient)

    # What the loop does.

    def zero(self, optimizer: Optimizer | None, *, set_to_none: bool) -> None:
        """``zero_grad`` of an optimizer, or of the model."""
        self._collect()
        names = self.names & (self.names if optimizer is None else self._names[optimizer])
        if set_to_none:
            self._leave(names)
        for name, alias in self._aliases:
            if name in names:
                alias.zero_()
        self._forget(names)
        if not set_to_none:
            self._zeros |= names

    def begin_backward(self) -> None:
        """Gradients of before are in the store when others come to be added to them."""
        self.take()
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
        execution_engine.queue_callback(self._give)

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

    def clip(self, max_norm: float, norm_type: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        clipped = partial(self._clip, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite)
        return clipped() if self._systems is None else self._systems.clip(clipped)

    def _clip(self, max_norm: float, norm_type: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        is_clipped = any(name not in self._applied for name in self._factors)
        if self._execution.updater.keeps_masters and is_clipped:
            raise error(
                "clipped-twice",
                "the gradients of this step are clipped already, and fp32 masters are updated by "
                "gradients that are multiplied once",
                help="call streamed.clip_grad_norm_ once between backward and optimizer.step()",
            )
        self._fill_zeros()
        self._execution.end_open_pass()
        self.take()
        norms = self._norms(norm_type)
        found = clip(
            norms, self._parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )
        self._multiply(norms, found.coefficient)
        self._give()
        return found.norm

    def _norms(self, norm_type: float) -> dict[str, torch.Tensor]:
        """Norms of all gradients by name, each taken where it is; zeros are in the store."""
        names, norm_dtype = self.names, self._execution.updater.norm_dtype
        self._let_written(names)
        factors = {name: self._factors.get(name, 1.0) for name in names}
        of_others = self._records.ask_norms(factors, norm_type)
        own: dict[str, torch.Tensor] = {}
        for record, held in self._execution.executor.split.records.items():
            here = {n: factors[n] for n in held if n in factors and self._records.is_here(n)}
            if here:
                with self._records.lent(record, (Part.GRADIENTS,), read_only=True) as loan:
                    own |= kept_norms(loan, here, norm_type, norm_dtype)
        return own | of_others()

    def step(self, optimizer: Optimizer, scale: float) -> None:
        """Divide the gradients of an optimizer by the scale of its loss, and take its step.

        The step of all optimizers is completed with the last of them.
        """
        self._unscale(optimizer, scale)
        self._stepped.add(optimizer)
        if len(self._stepped) < len(self._names):
            return
        self._stepped.clear()
        self._recall()
        self._fill_zeros()
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

    def _unscale(self, optimizer: Optimizer, scale: float) -> None:
        held = self._names[optimizer] & self._records.kept
        if math.frexp(scale)[0] == 0.5:
            # The quotient by a power of two is the product with its inverse, bit for bit.
            self._multiply(held, 1.0 / scale)
        else:
            for name in held:
                self._write(name, self._read(name).div_(scale))

    def _written_by_steps(self) -> set[str]:
        updater = self._execution.updater
        # Masters have gradients of their own, in fp32, of which nothing is kept.
        writing = () if updater.keeps_masters else filter(updater.writes_gradients, self._names)
        return set().union(*(self._names[optimizer] for optimizer in writing))


def are_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(flat(one).view(torch.uint8), flat(other).view(torch.uint8))


def _own_memory(value: StoredTensor) -> torch.Tensor:
    if value.backing.is_stored:
        raise error(
            "streamed-memory-shared",
            f"{value.backing.name} is in the parameter store, and shares memory with nothing",
            help="give a copy, with .clone()",
        )
    own = flat(value.backing.tensor()).view(value.dtype)
    # It may be a part of a larger tensor that the loop has given.
    offset = own.storage_offset() + value.storage_offset()
    return own.as_strided(value.size(), value.stride(), offset)


def _check_like(what: str, parameter: nn.Parameter, value: torch.Tensor) -> None:
    found = tuple(value.shape), value.dtype, value.device, value.stride()
    wanted = tuple(parameter.shape), parameter.dtype, parameter.device, parameter.stride()
    is_laid_out = found[3] == wanted[3] or (value.is_contiguous() and parameter.is_contiguous())
    if found[:3] != wanted[:3] or not is_laid_out:
        raise error(
            "streamed-value-unlike",
            f"{what} was given {_shown(value)}, and the parameter store keeps {_shown(parameter)}",
            help="give a tensor of that kind and those strides, or call streamed.close(), change "
            "the model, and stream it anew",
        )


def _shown(one: torch.Tensor) -> str:
    shape, strides = tuple(one.shape), one.stride()
    return f"{shape} {one.dtype} on {one.device} with the strides {strides}"
