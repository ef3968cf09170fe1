"""What a step computes, and a copy of its model that runs without a trace in the user's program."""

import copy
import io
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pickle import PicklingError
from types import CellType, FunctionType, MethodType
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import strides_of
from openwafer.training.stream.execute.reach import (
    ATOMS,
    NOTHING,
    Slot,
    defaults_of,
    held_by,
    read_cell,
)
from openwafer.training.stream.execute.snapshot import reached_from
from openwafer.training.stream.execute.thread_state import keeping_random_state
from openwafer.training.stream.layers import PINNED, Partition, run_whole
from openwafer.training.stream.plan.operators import (
    Allocation,
)
from openwafer.training.torch_private import (
    FakeTensorMode,
    disable_current_modes,
    pytree,
)


@dataclass(frozen=True)
class HeldGradients:
    """What the whole gradients take.

    Attributes:
        by_weight: device bytes of each, by the name of its weight.
        host_bytes: most that is kept of all of them in host memory, to the end of the step.
    """

    by_weight: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int = 0

    def while_streaming(self, split: Partition) -> int:
        """Device bytes of the layer that has most, and of weights that stay, which come last."""
        by_record = {
            record: sum(self.by_weight.get(name, 0) for name in names)
            for record, names in split.records.items()
        }
        pinned = by_record.pop(PINNED, 0)
        return pinned + max(by_record.values(), default=0) + self._made

    @property
    def while_resident(self) -> int:
        """Device bytes of all of them."""
        return sum(self.by_weight.values()) + self._made

    def more_while_resident(self, split: Partition) -> int:
        """What they take beyond :meth:`while_streaming` then."""
        return self.while_resident - self.while_streaming(split)

    @property
    def _made(self) -> int:
        """Of one that is being added to the others."""
        return max(self.by_weight.values(), default=0)


Batch = object
LossOf = Callable[[nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """What a step computes.

    Attributes:
        model: the model, its parameters on any device, the meta device too.
        batches: one example a micro-batch, trees of tensors of the sizes of the real ones.
        loss_of: runs the model on a batch and returns its scalar loss.
        autocast_dtype: dtype of the autocast that the step runs under, or ``None``.
        allocation: makes the context in which it allocates.
        is_graded: whether backward follows, or the batches are only evaluated.
        held_gradients: what some steps hold beside what this one shows.
        meets_others: whether micro-batches that are not shown come between two of these.
    """

    model: nn.Module
    batches: Sequence[Batch]
    loss_of: LossOf
    autocast_dtype: torch.dtype | None = None
    allocation: Allocation = nullcontext
    is_graded: bool = True
    held_gradients: HeldGradients = HeldGradients()
    meets_others: bool = False


def placed(batch: Batch, mode: FakeTensorMode | None, torch_device: torch.device) -> Batch:
    """A copy of a batch on a device, fake where a mode is given."""

    def place(tensor: torch.Tensor) -> torch.Tensor:
        # A leaf: a graph that leads to it is the caller's, and no fake mode can look at it.
        with disable_current_modes():
            alone = tensor.detach().requires_grad_(tensor.requires_grad)
        moved = alone if mode is None else mode.from_tensor(alone)
        return moved.to(torch_device)

    return pytree.tree_map_only(torch.Tensor, place, batch)


@contextmanager
def unseen(workload: Workload) -> Iterator[None]:
    """Context after which everything is as before that the step's code can reach.

    The model itself is copied to be run, and code that names it all the same leaves no gradients in
    it. Globals, closures, attributes of classes and objects that
    the code names are put back, random generators too; what is printed or logged as information
    is dropped, and breakpoints are passed over. What leaves the process, into a file or
    a connection, is out of reach.
    """
    hooks = {name: held for name, held in vars(torch_module).items() if "_hooks" in name}
    before = reached_from(
        [
            *workload.model.named_modules(),
            ("loss", workload.loss_of),
            ("batch", list(workload.batches)),
            ("hooks", hooks),
        ],
        passes_buffers_over=True,
    )
    gradients = [(parameter, parameter.grad) for parameter in workload.model.parameters()]
    was_disabled, breakpoints = logging.root.manager.disable, sys.breakpointhook
    logging.disable(max(was_disabled, logging.INFO))
    sys.breakpointhook = lambda *args, **kwargs: None
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        with keeping_random_state(), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(was_disabled)
        sys.breakpointhook = breakpoints
        for parameter, gradient in gradients:
            parameter.grad = gradient
        before.put_back()


Memo = dict[int, object]


# What objects raise that cannot be taken apart.
REFUSALS: Final = (
    *(TypeError, AttributeError, ValueError, RuntimeError, NotImplementedError, PicklingError),
)
_CONTAINERS: Final = (dict, OrderedDict)
_TREATED_KINDS: Final = (
    type,
    FunctionType,
    MethodType,
    CellType,
    Slot,
    nn.Module,
    torch.Tensor,
)


def hollow_copy(model: nn.Module, torch_device: torch.device) -> nn.Module:
    """A copy of the model whose parameters are zero (fake under a fake tensor mode).

    It leaves out no layer and no token, so that what it needs is enough for any pass.

    Raises:
        OpenwaferError: ``model-not-copied``.
    """
    memo: Memo = {}
    for parameter in model.parameters():
        # Zeros are pages without memory until they are written, and finite.
        strides = strides_of(parameter)
        size = parameter.shape if strides is None else (parameter.numel(),)
        data = torch.zeros(size, dtype=parameter.dtype, device=torch_device)
        if strides is not None:
            data = data.as_strided(parameter.shape, strides)
        hollow = nn.Parameter(data, requires_grad=parameter.requires_grad)
        memo[id(parameter)] = hollow
        # Such as main_grad, to which a backward of somebody's own adds.
        for name, value in vars(parameter).items():
            is_tensor = isinstance(value, torch.Tensor)
            setattr(hollow, name, _copied(value, torch_device) if is_tensor else value)
    copied = copy_with(model, memo, torch_device)
    run_whole(copied)
    return copied


def copy_with(model: nn.Module, memo: Memo, torch_device: torch.device | None = None) -> nn.Module:
    """A copy of a model, for whose parameters ``memo`` has others.

    Args:
        torch_device: where the other tensors go; ``None`` leaves them where they are.

    Raises:
        OpenwaferError: ``model-not-copied``.
    """
    held = list(held_by(model))
    for tensor in _tensors(held, memo):
        memo[id(tensor)] = _copied(tensor, torch_device)
    shells = _shells(model, memo)
    memo |= {id(one): one for one in held if id(one) not in memo and not _can_be_copied(one)}
    functions = _copy_functions(held, memo)
    _copy_empty(model, memo)
    try:
        # Every tensor is there already; generators of random numbers have no fake form.
        with disable_current_modes():
            copied = copy.deepcopy(model, memo)
            for module, shell in shells:
                vars(shell).update(copy.deepcopy(vars(module), memo))
            for own, made in functions:
                _copy_held(own, made, memo)
            for module in copied.modules():
                vars(module).update(
                    {name: _bound_anew(value, memo) for name, value in vars(module).items()}
                )
    except REFUSALS as cause:
        raise error(
            "model-not-copied",
            f"planning runs a copy of the model, and this {type(model).__name__} cannot be "
            f"copied: {cause}",
            help="let what cannot be copied be no attribute of a module, or give its class a "
            "__deepcopy__ that returns the object itself",
        ) from cause
    return copied


def _copy_empty(model: nn.Module, memo: Memo) -> None:
    """Copy what modules hold without anything in it, a dozen of hooks each, at a small price."""
    for module in model.modules():
        for value in vars(module).values():
            if type(value) in _CONTAINERS and not value:
                memo.setdefault(id(value), type(value)())


def _shells(model: nn.Module, memo: Memo) -> list[tuple[nn.Module, nn.Module]]:
    """Modules of their own way to be pickled, each with an empty one, which is its copy.

    By their way, as Keras's layers are saved and loaded, a copy would have other parameters.
    """
    pairs = []
    for module in model.modules():
        kind: Any = type(module)
        is_plain = (
            kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
        )
        if not is_plain and not hasattr(module, "__deepcopy__"):
            memo[id(module)] = shell = object.__new__(kind)
            pairs.append((module, shell))
    return pairs


def _tensors(held: Iterable[object], memo: Memo) -> Iterator[torch.Tensor]:
    for one in held:
        if isinstance(one, torch.Tensor) and id(one) not in memo:
            yield one


def _copied(tensor: torch.Tensor, torch_device: torch.device | None) -> torch.Tensor:
    """A copy, and zeros in the place of what a hook or an earlier forward has computed.

    So ``torch.nn.utils.prune`` and ``weight_norm`` hold a weight, and routers their losses.
    """
    if not tensor.is_leaf or tensor.is_meta:
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=torch_device or "meta")
    copied = tensor.detach().to(torch_device or tensor.device, copy=True)
    return copied.requires_grad_(tensor.requires_grad)


def _can_be_copied(found: Any) -> bool:
    if isinstance(found, _TREATED_KINDS) or hasattr(found, "__deepcopy__"):
        return True
    try:
        found.__reduce_ex__(4)
    except REFUSALS:
        return False
    except OpenwaferError:
        # Ours, which says what is wrong where it is really copied.
        return True
    return True


def _copy_functions(held: Iterable[object], memo: Memo) -> list[tuple[FunctionType, FunctionType]]:
    """Copy the functions that hold something; return each with its copy, which holds it still."""
    cells: dict[int, CellType] = {}
    made = []
    for function in held:
        if isinstance(function, FunctionType) and _holds(function) and not _is_ours(function):
            closure = tuple(
                cells.setdefault(id(cell), CellType()) for cell in function.__closure__ or ()
            )
            memo[id(function)] = copied = _with_closure(function, closure)
            made.append((function, copied))
    return made


def _holds(function: FunctionType) -> bool:
    return bool(function.__closure__) or any(
        type(one) not in ATOMS for one in defaults_of(function)
    )


def _copy_held(own: FunctionType, made: FunctionType, memo: Memo) -> None:
    for cell, copied in zip(own.__closure__ or (), made.__closure__ or (), strict=True):
        if read_cell(cell) is not NOTHING:
            copied.cell_contents = _bound_anew(copy.deepcopy(cell.cell_contents, memo), memo)
    made.__defaults__ = copy.deepcopy(own.__defaults__, memo)
    made.__kwdefaults__ = copy.deepcopy(own.__kwdefaults__, memo)


def _bound_anew(copied: object, memo: Memo) -> object:
    """A copied method with the copy of its function, of which deepcopy does not know."""
    if not isinstance(copied, MethodType):
        return copied
    function = copied.__func__
    if isinstance(function, FunctionType) and _is_ours(function):
        function = vars(function).get("__wrapped__", function)
    made = memo.get(id(function))
    return MethodType(made, copied.__self__) if isinstance(made, FunctionType) else copied


def _is_ours(function: FunctionType) -> bool:
    """Whether this package has made a function, to stand in for a forward: it is told the copy."""
    return str(function.__globals__.get("__name__")).startswith("openwafer.")


def _with_closure(function: FunctionType, closure: tuple[CellType, ...]) -> FunctionType:
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        closure or None,
    )
    made.__qualname__ = function.__qualname__
    made.__dict__.update(function.__dict__)
    return made
