"""How a forward passes from layer to layer: where it can be cut, and what crosses each cut.

The forward is walked once on tensors without memory. What an operator makes of weights, of random
numbers or of other such tensors is *computed*; all else (positions, masks) follows from the inputs,
and every stage makes it for itself. A forward can be cut before a call of a layer if what was
computed before the call and is used from it on comes as arguments of the call.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.stream.execute.attachment import Function, call_of, stand_in
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.execute.pass_watch import TensorForm
from openwafer.training.stream.execute.thread_state import autocast
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode, faked
from openwafer.training.stream.plan.operators import ASK_DEVICE, CallsByKind, CountingMeter
from openwafer.training.stream.plan.workload import Batch, Workload, hollow_copy, placed, unseen
from openwafer.training.torch_private import pytree

READ_VALUE: Final = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - its only name
_PLAIN: Final = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Call:
    """One call of a layer in a forward.

    Attributes:
        layer: its name.
        output: what it returns, a tree with forms for tensors.
        passed: which leaves of its arguments cross the cut before it; see :func:`leaves_of`.
        forms: theirs.
        refusal: why the forward cannot be cut before it; empty where it can.
    """

    layer: str
    output: Any
    passed: tuple[int, ...]
    forms: tuple[TensorForm, ...]
    refusal: str


@dataclass(frozen=True)
class Segment:
    """What runs from one call of a layer to the next; the first also what runs before any call.

    Attributes:
        calls: of operators.
        activation_bytes: that it leaves behind for the backward.
    """

    calls: CallsByKind
    activation_bytes: int


@dataclass(frozen=True)
class Flow:
    """A forward as calls of layers, one behind the other.

    Attributes:
        calls: of layers.
        segments: as many.
        uses: by parameter, the segments in which it is used, one for each operator.
        draws: whether random numbers are drawn.
    """

    calls: tuple[Call, ...]
    segments: tuple[Segment, ...]
    uses: Mapping[str, tuple[int, ...]]
    draws: bool


FlowOf = Callable[[Forward], Flow]
"""How a forward goes through the layers: the same object for forwards of one kind."""


def leaves_of(args: Any, kwargs: Any) -> list[Any]:
    """The arguments of a call, those in plain tuples, lists and dicts one by one."""
    return pytree.tree_leaves(
        (tuple(args), dict(kwargs)), is_leaf=lambda one: type(one) not in (tuple, list, dict)
    )


def flow_of(workload: Workload, batch: Batch, layers: Sequence[str], device: torch.device) -> Flow:
    """Walk the forward of one micro-batch.

    Args:
        workload: what a step computes; its model's parameters need no values.
        batch: of the sizes of the real one.
        layers: names of modules, none of which calls another.
        device: where the forward will run.

    Raises:
        OpenwaferError: ``pipelined-values`` where it depends on values that were computed.
    """

    def walk(mode: RememberingFakeMode | None) -> Flow:
        model = hollow_copy(workload.model, device)
        with _Walk(model) as meter, ExitStack() as undo:
            meter.walks(mode)
            for name in layers:
                attribute, function = call_of(model.get_submodule(name))
                run = partial(meter.run_layer, name)
                undo.callback(stand_in(model.get_submodule(name), attribute, function, run))
            given = placed(batch, mode, device)
            meter.begin_segment()
            with autocast(device, workload.autocast_dtype):
                loss = workload.loss_of(model, given)
            flow: Flow = meter.flow()
            del loss
        return flow

    with unseen(workload), torch.enable_grad():
        return faked(walk)


class _Origin(NamedTuple):
    """Where a tensor was computed, and whether as a view outside of layers."""

    segment: int
    is_outer_view: bool
    alive: "weakref.ref[torch.Tensor]"


class _Walk(CountingMeter):
    """Notes what is computed from what, and between which calls of layers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {id(one): name for name, one in model.named_parameters()}
        self._uses: dict[str, list[int]] = {}
        # By identity, while they live.
        self._made: dict[int, _Origin] = {}
        self._made_storages: dict[weakref.ref[torch.UntypedStorage], int] = {}
        # By cut, those that cross it.
        self._crossing: list[dict[int, torch.Tensor]] = []
        self._layers: list[str] = []
        # A tensor that takes the identity of one that has died is made later, and crosses less.
        self._leaves: list[list[int]] = []
        self._outputs: list[Any] = []
        self._segments: list[Segment] = []
        self._bytes_before = 0
        self._is_inside = self._draws = False

    def run_layer(self, name: str, function: Function, args: Any, kwargs: Any) -> Any:
        """Run one call of a layer."""
        if self._layers:
            self._end_segment()
        self._layers.append(name)
        self._leaves.append([id(leaf) for leaf in leaves_of(args, kwargs)])
        self._crossing.append({})
        self._is_inside = True
        out = function(*args, **kwargs)
        self._is_inside = False
        self._outputs.append(pytree.tree_map_only(torch.Tensor, _form, out))
        return out

    def begin_segment(self) -> None:
        """What was counted before is none of the forward's."""
        self._bytes_before = self.used_bytes
        self.take_calls()

    def _end_segment(self) -> None:
        left = self.used_bytes - self._bytes_before
        self._segments.append(Segment(self.take_calls(), max(left, 0)))
        self._bytes_before = self.used_bytes

    def flow(self) -> Flow:
        """What was seen."""
        self._end_segment()
        calls = tuple(map(self._call, range(len(self._layers))))
        uses = {name: tuple(segments) for name, segments in self._uses.items()}
        return Flow(calls, tuple(self._segments), uses, self._draws)

    def _call(self, index: int) -> Call:
        crossing, leaves = self._crossing[index], self._leaves[index]
        passed = tuple(n for n, leaf in enumerate(leaves) if leaf in crossing)
        tensors = [crossing[leaves[n]] for n in passed]
        refusal = self._refusal(index, crossing.keys() - set(leaves), tensors)
        forms = tuple(map(_form, tensors))
        return Call(self._layers[index], self._outputs[index], passed, forms, refusal)

    def _refusal(self, index: int, beside: AbstractSet[int], passed: Sequence[torch.Tensor]) -> str:
        """Why the forward cannot be cut before a call."""
        if index == 0:
            return "no layer is called before it"
        if beside:
            shape = tuple(self._crossing[index][min(beside)].shape)
            return f"a tensor of shape {shape} goes past its arguments"
        if not all(map(_is_plain, self._outputs[:index])):
            return f"{self._layers[index - 1]!r}, or a layer before it, returns more than tensors"
        if any(self._made[id(one)].is_outer_view for one in passed):
            return "an argument is a view"
        if not all(one.is_contiguous() for one in passed):
            return "an argument is not contiguous"
        if not any(one.requires_grad for one in passed):
            return "no gradient comes back through its arguments"
        return ""

    @property
    def _segment(self) -> int:
        return max(len(self._layers) - 1, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ASK_DEVICE:
            return super().__torch_dispatch__(func, types, args, kwargs)
        is_computed = torch.Tag.nondeterministic_seeded in func.tags
        self._draws |= is_computed
        for tensor in _tensors((args, kwargs)):
            is_computed |= self._use(tensor)
        if is_computed and func is READ_VALUE:
            raise error(
                "pipelined-values",
                "the model's forward reads a value that it has computed, and where it goes on "
                "may depend on it",
                help="leave streaming.mode out, or decide by the inputs",
            )
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if is_computed:
            written = (args, kwargs) if func._schema.is_mutable else ()  # noqa: SLF001 - no other way
            for tensor in _tensors((out, written)):
                self._note(tensor, is_outer_view=func.is_view and not self._is_inside)
        return out

    def _use(self, tensor: torch.Tensor) -> bool:
        """Note a use; whether the tensor is a weight, or computed."""
        segment = self._segment
        name = self._names.get(id(tensor))
        if name is not None:
            self._uses.setdefault(name, []).append(segment)
            return True
        origin = self._made.get(id(tensor))
        made = self._made_storages.get(_storage(tensor)) if origin is None else origin.segment
        if made is None:
            return False
        for cut in range(made + 1, segment + 1):
            self._crossing[cut][id(tensor)] = tensor
        return True

    def _note(self, tensor: torch.Tensor, *, is_outer_view: bool) -> None:
        if id(tensor) in self._names:
            return
        alive = weakref.ref(tensor, partial(self._drop, id(tensor)))
        self._made[id(tensor)] = _Origin(self._segment, is_outer_view, alive)
        self._made_storages[_storage(tensor, self._drop_storage)] = self._segment

    def _drop(self, identity: int, reference: "weakref.ref[torch.Tensor]") -> None:
        if identity in self._made and self._made[identity].alive is reference:
            del self._made[identity]

    def _drop_storage(self, reference: "weakref.ref[torch.UntypedStorage]") -> None:
        self._made_storages.pop(reference, None)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _storage(
    tensor: torch.Tensor,
    forget: Callable[["weakref.ref[torch.UntypedStorage]"], None] | None = None,
) -> "weakref.ref[torch.UntypedStorage]":
    return weakref.ref(tensor.untyped_storage(), forget)


def _form(tensor: torch.Tensor) -> TensorForm:
    return TensorForm(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)


def _is_plain(output: Any) -> bool:
    leaves = pytree.tree_leaves(output, is_leaf=lambda one: type(one) is TensorForm)
    return all(isinstance(leaf, (TensorForm, *_PLAIN)) for leaf in leaves)
