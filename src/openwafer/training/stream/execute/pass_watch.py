"""Which passes are metered, and what keeps the others within the device budget.

A pass takes the memory that a pass of the same kind has taken before, unless what the model does
depends on more than its arguments. So a kind is metered when it comes for the first time. In the
passes after that, the bytes that autograd saves, which the hooks of every layer see, are held
against those of the metered pass: more of them are judged at once, by what they add to the plan.
Passes without gradients are of one kind where sizes differ by a quarter at most, as those of a
growing cache do.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.layer_backend import TORCH, LayerBackend
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.activations import Frame, move_to_host
from openwafer.training.stream.replicas.ownership import Ownership, StagePlan, StoreShare
from openwafer.training.stream.step_plan import StepPlan
from openwafer.training.torch_private import pytree

T = TypeVar("T")

# Objects in objects in arguments; what lies deeper tells nothing.
MAX_DEPTH: Final = 6


class TensorForm(NamedTuple):
    """A tensor without its values; strides in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


Leaf: TypeAlias = TensorForm | bool | int | str | type | None


@dataclass(frozen=True)
class CallKind:
    """One kind of call of a model: all that its memory depends on, but for values.

    Attributes:
        function: what is called.
        leaves: of the arguments, by path.
        is_graded: whether gradients are wanted.
        autocast: dtype of the autocast that is on, or ``None``.
        training: by module, whether it is in training mode.
        trained: by parameter, whether it requires a gradient.
    """

    function: str
    leaves: tuple[tuple[str, Leaf], ...]
    is_graded: bool
    autocast: torch.dtype | None
    training: tuple[bool, ...]
    trained: tuple[bool, ...]

    def fits_in(self, other: "CallKind") -> bool:
        """Whether a call of this kind takes no more than one of the other kind.

        Every tensor is there in the other, too, and is no larger there in any dim. Evaluation
        takes no more than training: it saves nothing, and drops nothing.
        """
        known = dict(other.leaves)
        return (
            self.function == other.function
            and self.is_graded <= other.is_graded
            and self.autocast == other.autocast
            and (self.training == other.training or not any(self.training))
            and all(_fits(leaf, known.get(path)) for path, leaf in self.leaves)
        )

    def is_like(self, other: "CallKind") -> bool:
        """Whether every tensor is there in the other, too, and has its form."""
        known = dict(other.leaves)
        forms = ((path, leaf) for path, leaf in self.leaves if type(leaf) is TensorForm)
        return all(known.get(path) == form for path, form in forms)

    def shapes(self) -> str:
        """The tensors among the arguments, for a message."""
        told = [f"{path} {leaf.shape}" for path, leaf in self.leaves if type(leaf) is TensorForm]
        return ", ".join(told) or "no tensors"


def are_planned(kind: CallKind, planned: Iterable[CallKind], backend: LayerBackend) -> bool:
    """Whether a call is within those of a plan; programs of a device are of their own sizes."""
    has_programs = backend is not TORCH
    return any(kind.fits_in(one) and (kind.is_like(one) or not has_programs) for one in planned)


class Members(NamedTuple):
    """What a model is made of; to walk through it takes longer than a small layer."""

    modules: tuple[nn.Module, ...]
    parameters: tuple[nn.Parameter, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Members":
        """The members of a model as it is."""
        return cls(tuple(model.modules()), tuple(model.parameters()))


def call_kind(
    model: Members, function: str, args: object, kwargs: object, device: torch.device
) -> CallKind:
    """The kind of a call that is about to be made.

    Args:
        model: what is called, or what it is a part of.
        function: name for what is called.
        args, kwargs: the call's arguments.
        device: whose autocast counts.
    """
    is_cast = torch.is_autocast_enabled(device.type)
    return CallKind(
        function,
        (*_leaves(args, "argument", MAX_DEPTH), *_leaves(kwargs, "", MAX_DEPTH)),
        torch.is_grad_enabled(),
        torch.get_autocast_dtype(device.type) if is_cast else None,
        tuple([module.training for module in model.modules]),
        tuple([parameter.requires_grad for parameter in model.parameters]),
    )


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, torch.Tensor):
        yield path, TensorForm(tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    elif value is None or isinstance(value, bool | int | str):
        yield path, value
    elif depth == 0:
        yield path, type(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key), depth - 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path} {index}", depth - 1)
    else:
        yield path, type(value)
        # A batch may be an object of any class, with tensors in it.
        yield from _leaves(getattr(value, "__dict__", ()), path, depth - 1)


def _fits(leaf: Leaf, known: Leaf) -> bool:
    if leaf is None:
        return True
    if type(leaf) is TensorForm and type(known) is TensorForm:
        return (
            leaf.dtype == known.dtype
            and leaf.requires_grad <= known.requires_grad
            and len(leaf.shape) == len(known.shape)
            and all(size <= most for size, most in zip(leaf.shape, known.shape, strict=True))
        )
    # Whole numbers, such as a step, come and go; their size says nothing of memory.
    is_number = type(leaf) is int and type(known) is int
    return is_number or (type(leaf) is type(known) and leaf == known)


class Graph(NamedTuple):
    """What an earlier call has left for a backward that has not come.

    Attributes:
        kind: of the call.
        num_bytes: that it holds on the device, as its plan has it.
    """

    kind: CallKind
    num_bytes: int


@dataclass(frozen=True)
class StepContract:
    """What the passes of a model go by, and what they are held to.

    Attributes:
        plan: of a step.
        kinds: of calls that it has room for.
        peak_bytes: on the device, at the peak of a planned step.
        left_bytes: those that its forward leaves.
        depends_on_values: whether passes of one kind may differ, so that every one is metered.
        ownership: which of several ranks has a record, and which computes with it.
        stages: what each of them computes; ``None`` where all compute all layers.
        shares: what the store of each holds; empty where the first one has all.
    """

    plan: StepPlan
    kinds: tuple[CallKind, ...]
    peak_bytes: int
    left_bytes: int
    depends_on_values: bool
    ownership: Ownership = field(default_factory=Ownership)
    stages: StagePlan | None = None
    shares: tuple[StoreShare, ...] = ()

    def share(self, rank: int) -> StoreShare:
        """What the store of a rank holds, which may be nothing."""
        nothing = StoreShare({}, {}, ring_bytes=0, uses_disk=False)
        return self.shares[rank] if rank < len(self.shares) else nothing


MoveGraphs: TypeAlias = Callable[[], Sequence[Graph]]
"""Moves graphs of earlier calls to host memory, and says what they still hold on the device."""
Admit: TypeAlias = Callable[[CallKind, Any, Any, Sequence[Graph], MoveGraphs], None]
"""Makes room for a call beside the graphs of earlier ones, or refuses it."""
Agree: TypeAlias = Callable[[CallKind, Any, Any, Sequence[Graph] | None], None]
"""Lets all systems begin a call, given those graphs, or ``None`` where there is room for it."""

PassKey: TypeAlias = tuple[int, tuple[CallKind, ...]]
"""The order of a pass, and the kinds of its calls."""

ROOT: Final = "forward"
MAX_KINDS: Final = 10_000


class PassWatch:
    """Follows the passes of one model.

    Args:
        model: whose passes they are.
        device: where it runs.
        weights: what of its weights is there.

    Attributes:
        planned, depends_on_values: see :class:`StepContract`.
        admit: asked before a call of the model that is not within the planned ones.
        agree: asked before every call, where other systems make it, too; it makes room.
        met: kinds of the calls of the pass under way, or of the last one.
    """

    def __init__(self, model: nn.Module, device: Device, weights: DeviceWeights) -> None:
        self._contract: StepContract | None = None
        self.planned: tuple[CallKind, ...] = ()
        self._peak_bytes = self._left_bytes = 0
        self.depends_on_values = False
        self.admit: Admit | None = None
        self.agree: Agree | None = None
        self.met: list[CallKind] = []
        self._members = Members.of(model)
        self._device = device
        self._weights = weights
        self._order = 0
        # Bytes saved for backward when each of its visits was over: of passes without gradients no
        # bytes say that a cache in the model has grown, so they are never known.
        self._known: dict[PassKey, list[int]] = {}
        # What those passes began with: all their calls may be met before a layer of one has ended.
        self._beginnings: set[PassKey] = set()
        # That list of the pass under way, once a layer of it has ended.
        self._profile: list[int] | None = None
        self._is_learning = False
        self._saved_bytes = 0
        self._frames: list[weakref.ref[Frame]] = []
        self._living: list[tuple[Graph, list[weakref.ref[Frame]]]] = []
        self._returned: list[weakref.ref[torch.Tensor]] = []

    def hold_to(self, contract: StepContract) -> None:
        """Hold passes to this from now on. What has been found to depend on values does so yet."""
        self._contract = contract
        self.planned = contract.kinds
        self._peak_bytes, self._left_bytes = contract.peak_bytes, contract.left_bytes
        self.depends_on_values |= contract.depends_on_values

    def contract(self, plan: StepPlan) -> StepContract:
        """What passes are held to now, by a plan."""
        assert self._contract is not None
        return replace(self._contract, plan=plan, depends_on_values=self.depends_on_values)

    def admit_call(self, function: str, args: Any, kwargs: Any) -> CallKind:
        """Make room for a call that is a pass by itself, before anything of it is computed.

        Raises:
            OpenwaferError: there is no room.
        """
        kind = call_kind(self._members, function, args, kwargs, self._device.torch_device)
        self._note_living()
        lacks_room, living = False, self._graphs
        if function == ROOT and self._device.budget_bytes is not None:
            backend = self._device.backend
            lacks_room = bool(living) or not (
                are_planned(kind, self.planned, backend) or self._is_metered_only(kind)
            )
        if self.agree is not None:
            self.agree(kind, args, kwargs, living if lacks_room else None)
        elif self.admit is not None and lacks_room:
            self.admit(kind, args, kwargs, living, self.move_graphs)
        return kind

    def _note_living(self) -> None:
        """Keep the passes in mind whose graphs are there yet."""
        if self.met and self.met[0].is_graded:
            self._living.append((Graph(self.met[0], self._left_bytes), self._frames))
        self.begin_pass()
        self._living = [one for one in self._living if _alive(one[1])]

    @property
    def _graphs(self) -> list[Graph]:
        """Those of earlier passes, as far as they are on the device."""
        return [
            Graph(kind, max(left - sum(frame.moved_bytes for frame in _alive(frames)), 0))
            for (kind, left), frames in self._living
        ]

    def move_graphs(self) -> list[Graph]:
        """Let the graphs of earlier passes wait in host memory, as far as they can."""
        move_to_host(
            [frame for _, frames in self._living for frame in _alive(frames)], self._device
        )
        return self._graphs

    def _is_planned(self, kind: CallKind) -> bool:
        return any(kind.fits_in(planned) for planned in self.planned)

    def _is_metered_only(self, kind: CallKind) -> bool:
        """Whether a call without gradients has arguments that no planned one has.

        They may be a cache, which tells its length by its values and so cannot be walked without
        them, and is longer at every call. No plan makes such a call take less.
        """
        given = {path for path, _ in kind.leaves}
        known = (dict(planned.leaves).keys() for planned in self.planned)
        return not kind.is_graded and not any(given <= paths for paths in known)

    def begin_pass(self, order: int = 0) -> None:
        """A pass begins, whose micro-batches meet its layers in some order."""
        self._order = order
        self.met, self._frames, self._profile = [], [], None
        self._is_learning = False
        self._saved_bytes = 0

    def meet_beside_others(self, args: Any, kwargs: Any) -> None:
        """A micro-batch calls the model, in a pass that has begun.

        Who runs passes without gradients sees to their size.

        Raises:
            OpenwaferError: ``batch-larger-than-planned``.
        """
        kind = call_kind(self._members, ROOT, args, kwargs, self._device.torch_device)
        is_judged = kind.is_graded and self._device.budget_bytes is not None
        if is_judged and self.planned and not self._is_planned(kind):
            raise larger_than_planned(kind, self.planned)
        self.meet(kind)

    @property
    def _key(self) -> PassKey:
        return self._order, tuple(self.met)

    def meet(self, kind: CallKind) -> None:
        """The pass that has begun is of this kind, or of this kind, too."""
        self.met.append(kind)
        self._profile = None
        if self._device.budget_bytes is None:
            return
        if len(self._known) > MAX_KINDS:
            self._known.clear()
            self._beginnings.clear()
        self._is_learning = self._key not in self._beginnings
        if self._is_learning or self.depends_on_values:
            self._device.watch(self._weights.memory())

    def end_forward(self, out: Any) -> None:
        """A call that is a pass by itself returns this."""
        if self._device.budget_bytes is not None:
            leaves = pytree.tree_leaves(out)
            self._returned = [weakref.ref(one) for one in leaves if isinstance(one, torch.Tensor)]

    @contextmanager
    def naming_outputs(self) -> Iterator[None]:
        """Context of a forward: one for which there is no room tells what is held of the last."""
        try:
            yield
        except OpenwaferError as found:
            held = {out.untyped_storage().data_ptr(): out for out in _alive(self._returned)}
            first = found.diagnostics[0]
            if not held or first.code != "device-budget-exceeded":
                raise
            num_bytes = sum(out.untyped_storage().nbytes() for out in held.values())
            note = (
                f"{num_bytes:,} bytes are the output of the call before, which the loop still "
                "holds: `del` it before the next call"
            )
            raise OpenwaferError(replace(first, notes=(*first.notes, note))) from found

    def begin_layer(self, frame: Frame) -> None:
        """A layer begins whose saved tensors a frame sees."""
        self._frames.append(weakref.ref(frame))

    def end_layer(self, frame: Frame, visit: int) -> None:
        """A layer has saved what it saves.

        Raises:
            OpenwaferError: ``device-budget-exceeded`` where it is more than there is room for.
        """
        self._saved_bytes += frame.saved_bytes
        budget = self._device.budget_bytes
        if budget is None:
            return
        known = self._profile
        if known is None:
            known = self._profile = self._begin_profile()
        most = known[visit] if visit < len(known) else -1
        if self._saved_bytes <= most:
            return
        if not self._is_learning and not self.depends_on_values:
            more_bytes = self._saved_bytes - max(most, known[-1] if known else 0)
            self._judge(more_bytes, budget, visit)
        known.extend([0] * (visit + 1 - len(known)))
        known[visit] = self._saved_bytes

    def _begin_profile(self) -> list[int]:
        """The bytes that such a pass is known to save; none are known of one without its like."""
        order, kinds = key = self._key
        self._beginnings.update((order, kinds[: end + 1]) for end in range(len(kinds)))
        # Known passes that begin like it have more micro-batches, and take more than it does.
        self._is_learning |= key not in self._known
        return self._known.setdefault(key, [])

    def _judge(self, more_bytes: int, budget: int, visit: int) -> None:
        # What else of its memory is new comes out where the next pass is metered.
        self.depends_on_values = True
        if self._peak_bytes + more_bytes > budget:
            raise error(
                "device-budget-exceeded",
                f"visit {visit} of this pass has saved {more_bytes:,} bytes more than in passes of "
                f"the same arguments before, and the plan needs {self._peak_bytes:,} of "
                f"{budget:,} bytes",
                help="raise the device budget, or lower the micro-batch size or the sequence "
                "length",
            )


def _alive(references: Sequence[weakref.ref[T]]) -> list[T]:
    return [one for reference in references if (one := reference()) is not None]


def larger_than_planned(kind: CallKind, planned: Sequence[CallKind]) -> OpenwaferError:
    """The error of a call for which the plan of its step has no room."""
    return error(
        "batch-larger-than-planned",
        f"the model is called with {kind.shapes()}, and the step is planned for "
        f"{planned[0].shapes()}",
        help="plan with the largest batch there will be: give it first, or lower the batch size",
    )
