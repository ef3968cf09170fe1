"""What becomes of the activations a layer saves for its backward pass.

One :class:`Frame` stands for one call of a layer by one micro-batch. Its saved-tensor hooks see
every tensor that autograd saves: weights are replaced by handles, activations are kept, offloaded
to host memory, or dropped and recomputed. The autograd graph is always that of the plain call, so
sums run in the plain order and gradients keep their bits.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass, replace
from itertools import dropwhile, islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
import xxhash
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from openwafer.diagnostics import error
from openwafer.training.plan_record import Activations
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.saved_weights import Geometry
from openwafer.training.stream.device.weights import DeviceWeights, WeightHandle
from openwafer.training.stream.execute.host_copies import (
    MIN_OFFLOAD_BYTES,
    HostCopies,
    KnownCopy,
    MovedInput,
    OffloadedTensor,
)
from openwafer.training.stream.execute.snapshot import LayerState, version_of
from openwafer.training.stream.execute.thread_state import (
    RandomState,
    attention_as_now,
    foreign_hooks,
    hooks_passed_over,
)
from openwafer.training.stream.forms.weight_form import MOST_AHEAD, Bring
from openwafer.training.torch_private import is_in_torch_dispatch_mode, pytree, uncompiled


class Kept:
    """A tensor that waits for its backward in device memory, as it was when autograd saved it.

    torch refuses a saved tensor that was written in place since, but not where hooks have saved it:
    so that is done here. A plain loop has gone back through a micro-batch before the next one
    writes to the model's own tensors, such as statistics. Where micro-batches of one pass do that,
    those tensors are copied.

    Args:
        copied: storages of which a copy is kept, as the numbers that torch has for them.
    """

    __slots__ = ("__weakref__", "_held", "_version")

    def __init__(self, tensor: torch.Tensor, copied: AbstractSet[int]) -> None:
        if copied and shares_storage(tensor, copied):
            tensor = tensor.detach().clone()
        elif tensor.grad_fn is not None:
            # A result that its own node saves would keep the node, and no collector sees that
            # cycle: a graph that no backward has come to would never go.
            tensor = tensor.detach()
        # The tensor, or what brings its values back.
        self._held: torch.Tensor | Callable[[], torch.Tensor] = tensor
        self._version = tensor._version

    @property
    def movable(self) -> torch.Tensor | None:
        """The tensor, if it is here, as it was, and a plain array.

        It may have a tangent: torch keeps that beside what hooks have packed, and gives it back.
        """
        tensor = self._held
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return None
        return tensor if tensor._version == self._version else None

    def move(self, bring: Callable[[], torch.Tensor]) -> None:
        """Keep the tensor no longer: its values are elsewhere.

        Args:
            bring: brings them back.
        """
        self._held = bring

    def as_saved(self, layer: str = "") -> torch.Tensor:
        """The tensor, which is what it was.

        Raises:
            OpenwaferError: ``saved-tensor-written``.
        """
        tensor = self._held
        if not isinstance(tensor, torch.Tensor):
            return tensor()
        if tensor._version != self._version:
            saver = f"layer {layer!r}" if layer else "the model's forward"
            shown = f"{tuple(tensor.size())} {tensor.dtype}"
            raise error(
                "saved-tensor-written",
                f"a tensor {shown} that {saver} saved for its backward has been written in place "
                "since; a plain loop refuses that, too, if its backward comes later",
                help="write x = x + y in the place of x += y, or save a copy, with .clone()",
            )
        return tensor


def shares_storage(tensor: torch.Tensor, storages: AbstractSet[int]) -> bool:
    """Whether a tensor lies in one of these storages."""
    if not storages or tensor.layout is not torch.strided:
        return False
    return tensor.untyped_storage()._cdata in storages


def keeping(copied: AbstractSet[int]) -> saved_tensors_hooks:
    """Context for code beside the layers, which copies what it saves of these storages."""
    return saved_tensors_hooks(lambda tensor: Kept(tensor, copied), Kept.as_saved)


class _AllCollectedError(Exception):
    """Ends a recomputation once every tensor that the backward pass wants is there."""


class _WantedInsideError(Exception):
    """Ends a rehearsal: the layer's forward wants a tensor that it has saved."""


@dataclass(frozen=True)
class Call:
    """A layer call that can be run again.

    Attributes:
        layer: name, for messages.
        function: the layer's own forward.
        args, kwargs: its arguments.
        state: what it sees beside them.
        records: its weights.
    """

    layer: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: LayerState
    records: tuple[str, ...] = ()


class Frame:
    """The saved tensors of one layer call.

    Args:
        weights: tells weights from activations.
        ensure: brings a record to the device; called before a weight is used in backward, with the
            records behind it that may be wanted next.
        layer: name, for messages.
        copied: storages that the micro-batches of a pass write to one behind the other.

    Attributes:
        saved_bytes: bytes of the activations that autograd has saved, whatever becomes of them.
        moved_bytes: of those that were let go by the device behind the forward.
    """

    def __init__(
        self,
        weights: DeviceWeights,
        ensure: Bring,
        layer: str = "",
        copied: AbstractSet[int] = frozenset(),
    ) -> None:
        self.saved_bytes = self.moved_bytes = 0
        self._layer = layer
        self._copied = copied
        self._passed_over = foreign_hooks()
        # Of the weights that autograd has saved, the last one last.
        self._records: dict[str, None] = {}
        # Activations that wait on the device.
        self._kept: list[ref[Kept]] = []
        self._num_updates = weights.num_updates
        self._weights = weights
        self._ensure = ensure

    def hooks(self) -> AbstractContextManager[Any]:
        """Context under which the layer's forward runs."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def end_forward(self) -> None:
        """The layer's forward has ended."""

    def _pack(self, tensor: torch.Tensor) -> object:
        if self._passed_over is not None:
            raise hooks_passed_over(self._layer, self._passed_over)
        handle = self._weights.handle(tensor)
        if handle is not None:
            self._records.pop(handle.record, None)
            self._records[handle.record] = None
            return handle
        self.saved_bytes += tensor.nbytes
        return self._pack_activation(tensor)

    def _unpack(self, packed: object) -> torch.Tensor:
        if type(packed) is Kept:
            return packed.as_saved(self._layer)
        if isinstance(packed, WeightHandle):
            self._weights.check_not_updated(packed.record, self._num_updates)
            is_alone = len(self._records) == 1
            ahead = () if is_alone else self._wanted_next(packed.record)
            self._ensure((packed.record, *ahead))
            return self._weights.resolve(packed)
        return self._unpack_activation(packed)

    def _wanted_next(self, record: str) -> Iterator[str]:
        """Records whose weights were saved before: the backward goes the forward's way back."""
        behind = dropwhile(record.__ne__, reversed(self._records))
        return islice(behind, 1, 1 + MOST_AHEAD)

    def _pack_activation(self, tensor: torch.Tensor) -> object:
        kept = Kept(tensor, self._copied)
        self._kept.append(ref(kept))
        return kept

    def _unpack_activation(self, packed: object) -> torch.Tensor:
        """Bring back what is no weight and is not kept."""
        raise AssertionError(f"a frame that keeps activations has none packed as {type(packed)}")

    def move(self, copies: HostCopies) -> None:
        """Hold copies in host memory in the place of what waits on the device."""
        alive = (kept for one in self._kept if (kept := one()) is not None)
        waiting = [(kept, tensor) for kept in alive if (tensor := kept.movable) is not None]
        for kept, tensor in waiting:
            copy = copies.take(tensor)
            if copy is not None:
                kept.move(copy.restored)


def move_to_host(frames: Iterable[Frame], device: Device) -> None:
    """Let what frames hold for a backward that has not come wait in host memory.

    What one layer hands to the next is held by both. A storage that somebody else holds, too,
    stays, and no frame counts it as moved.
    """
    copies, first = HostCopies(device), list[tuple[Frame, ref[torch.UntypedStorage], int]]()
    for frame in frames:
        frame.move(copies)
        first += [(frame, *moved) for moved in copies.taken]
        copies.taken.clear()
    for frame, storage, num_bytes in first:
        if storage() is None:
            frame.moved_bytes += num_bytes


class OffloadFrame(Frame):
    """Copies saved activations to host memory, each storage once."""

    def __init__(
        self, weights: DeviceWeights, ensure: Bring, layer: str, copied: AbstractSet[int]
    ) -> None:
        super().__init__(weights, ensure, layer, copied)
        # Weak keys: a new storage may live where a freed one did.
        self._copies: WeakKeyDictionary[torch.UntypedStorage, KnownCopy] = WeakKeyDictionary()

    def _pack_activation(self, tensor: torch.Tensor) -> object:
        self._weights.uses.saved(self._layer, tensor)
        storage = tensor.untyped_storage()
        if storage.nbytes() < MIN_OFFLOAD_BYTES:
            return super()._pack_activation(tensor)
        known = self._copies.get(storage)
        if known is None or not known.holds(tensor):
            known = self._copies[storage] = KnownCopy(tensor, self._weights.device)
        return OffloadedTensor(known.storage, Geometry.of(tensor))

    def _unpack_activation(self, packed: object) -> torch.Tensor:
        assert isinstance(packed, OffloadedTensor)
        return packed.restored()


class _Saved(NamedTuple):
    """What is known of a tensor that was saved and dropped."""

    size: torch.Size
    dtype: torch.dtype
    checksum: int


class RecomputeFrame(Frame):
    """Drops saved activations and runs the layer again when the backward pass wants them.

    The layer sees again what it saw: its arguments, of which lists and dictionaries are its own
    the second time, its state, the random state and the autocast.
    """

    def __init__(self, weights: DeviceWeights, ensure: Bring, call: Call) -> None:
        super().__init__(weights, ensure, call.layer)
        self._call = replace(call, args=(), kwargs={})
        self._saved: list[_Saved] = []
        self._num_repeated = 0
        self._collected: dict[int, torch.Tensor] = {}
        self._written: AbstractSet[int] = frozenset()
        self._random = self._random_now()
        self._contexts = _contexts_now()
        self._state = call.state.now()
        self._leaves, self._tree = pytree.tree_flatten((call.args, call.kwargs))
        self._versions = self._versions_now()
        self._num_writes = weights.num_writes
        self._takes_checksums = not call.state.is_rehearsed
        self._is_rehearsal = False
        self._has_room = weights.device.watch_room() if self._takes_checksums else None

    def end_forward(self) -> None:
        """See, at a layer's first call, that it saves the same bits when it runs again.

        No plan counts that: where the device has no room for it beside the forward, the backward
        pass sees it, which runs the layer again in any case.

        Raises:
            OpenwaferError: ``recompute-differs``, ``recompute-input-changed``.
        """
        has_room, self._has_room = self._has_room, None
        if has_room is None or not has_room():
            return
        self._is_rehearsal = True
        # A GPU tells its room by this error.
        with suppress(torch.OutOfMemoryError):
            # A layer with a backward of its own inside needs the tensors themselves. Whoever
            # collects outputs of inner modules meanwhile, by a context variable, is not given them
            # twice.
            with suppress(_WantedInsideError):
                Context().run(self._run_again)
            self._end_checks()
        self._is_rehearsal = False

    def _end_checks(self) -> None:
        self._takes_checksums = False
        self._call.state.is_rehearsed = True

    def _pack_activation(self, tensor: torch.Tensor) -> object:
        self._weights.uses.saved(self._layer, tensor)
        self._saved.append(self._seen(tensor))
        return len(self._saved) - 1

    def _unpack_activation(self, packed: object) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        assert isinstance(packed, int)
        if self._is_rehearsal:
            raise _WantedInsideError
        if packed not in self._collected:
            self._run_again()
            self._end_checks()
        return self._collected.pop(packed)

    def _run_again(self) -> None:
        self._check_inputs()
        for record in self._call.records:
            self._ensure((record,))
        here = [leaf.tensor() if isinstance(leaf, MovedInput) else leaf for leaf in self._leaves]
        # The batch itself is nobody's activation, and counts from no rehearsal on.
        with self._weights.device.host_section():
            leaves = [_detached(leaf) for leaf in here]
        args, kwargs = pytree.tree_unflatten(leaves, self._tree)
        self._num_repeated = 0
        try:
            with ExitStack() as stack:
                stack.callback(self._random_now().restore)
                self._written = stack.enter_context(self._call.state.as_it_was(self._state))
                self._random.restore()
                stack.enter_context(torch.enable_grad())
                for context in self._contexts:
                    stack.enter_context(context())
                stack.enter_context(saved_tensors_hooks(self._pack_again, self._unpack))
                self._call.function(*args, **kwargs)
        except _AllCollectedError:
            pass
        if self._num_repeated != len(self._saved):
            raise self._differs(f"saved {self._num_repeated} tensors")

    def _pack_again(self, tensor: torch.Tensor) -> object:
        handle = self._weights.handle(tensor)
        if handle is not None:
            return handle
        index = self._num_repeated
        self._num_repeated += 1
        before = self._saved[index] if index < len(self._saved) else None
        if before is None or before.size != tensor.size() or before.dtype is not tensor.dtype:
            shown = f"{tuple(tensor.size())} {tensor.dtype}"
            raise self._differs(f"saved {shown} as tensor {index}")
        if self._takes_checksums and before != self._seen(tensor):
            raise self._differs(f"saved other values as tensor {index}")
        kept: object = index
        if not self._is_rehearsal:
            # The layer's own tensors get their present values back, in place.
            is_written = shares_storage(tensor, self._written)
            kept = tensor.detach().clone() if is_written else tensor.detach()
            self._collected[index] = kept
        if self._num_repeated == len(self._saved):
            raise _AllCollectedError
        return kept

    def _seen(self, tensor: torch.Tensor) -> _Saved:
        checksum = 0
        if self._takes_checksums:
            with self._weights.device.host_section():
                checksum = _checksum(tensor)
        return _Saved(tensor.size(), tensor.dtype, checksum)

    def _random_now(self) -> RandomState:
        is_whole = self._call.state.draws_beside_torch
        return RandomState.now(self._weights.device.torch_device, is_whole=is_whole)

    def _versions_now(self) -> list[int]:
        return [
            leaf.version if isinstance(leaf, MovedInput) else version_of(leaf)
            for leaf in self._leaves
            if isinstance(leaf, torch.Tensor | MovedInput)
        ]

    def move(self, copies: HostCopies) -> None:
        """Hold copies of the layer's inputs, if they are as they were."""
        if self._versions_now() != self._versions:
            return
        weights = self._weights
        for index, leaf in enumerate(self._leaves):
            if MovedInput.may_move(leaf, weights.device) and weights.handle(leaf) is None:
                copy = copies.take(leaf)
                self._leaves[index] = leaf if copy is None else MovedInput(leaf, copy)

    def _check_inputs(self) -> None:
        if self._weights.num_writes != self._num_writes:
            raise error(
                "recompute-weights-changed",
                f"weights were written or updated between the forward of layer "
                f"{self._call.layer!r} and its backward, which is to run it again",
                help="write to weights after backward, or keep this layer's activations: "
                "activations: {" + self._call.layer + ": keep}",
            )
        if self._versions_now() != self._versions:
            layer = self._call.layer
            self._call.state.refusal = "an input is written in place"
            raise error(
                "recompute-input-changed",
                f"an input of layer {layer!r} was written in place in its forward or after it",
                help="keep this layer's activations: activations: {" + layer + ": keep}",
            )

    def _differs(self, found: str) -> Exception:
        layer = self._call.layer
        self._call.state.refusal = f"running again, it {found}"
        return error(
            "recompute-differs",
            f"the recomputation of layer {layer!r} does not repeat its forward: it {found}, "
            f"the forward saved {len(self._saved)} tensors",
            help="its forward depends on something that is no argument, attribute or buffer of "
            "the layer: keep its activations, activations: {" + layer + ": keep}; a model that "
            "caches keys and values takes use_cache=False in training",
        )


def frame_for(
    policy: Activations,
    weights: DeviceWeights,
    ensure: Bring,
    call: Call,
    copied: AbstractSet[int],
) -> Frame:
    """The frame that treats a layer call by ``policy``; see :class:`Frame` for the others."""
    match policy:
        case Activations.KEEP:
            return Frame(weights, ensure, call.layer, copied)
        case Activations.OFFLOAD:
            return OffloadFrame(weights, ensure, call.layer, copied)
        case Activations.RECOMPUTE:
            return RecomputeFrame(weights, ensure, call)


def _detached(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().requires_grad_(leaf.requires_grad)


def _checksum(tensor: torch.Tensor) -> int:
    """Of a tensor's bits; 0 where they are not in host memory, or not a plain array."""
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    # The tangents of forward differentiation may be zeros without memory.
    is_zero = tensor._is_zerotensor()  # noqa: SLF001 - no public name
    if not is_plain or is_zero or tensor.device.type != "cpu":
        return 0
    bits = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return xxhash.xxh3_64_intdigest(bits.numpy().data)


def _contexts_now() -> tuple[Callable[[], AbstractContextManager[Any]], ...]:
    """Contexts of autocast as it is set now, for the host and the present accelerator.

    And of attention's kernels, and of the compiler, which a metered pass does without.
    """
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

    def context(kind: str) -> Callable[[], AbstractContextManager[Any]]:
        is_enabled = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind)

        def again() -> AbstractContextManager[Any]:
            if not is_enabled and not torch.is_autocast_enabled(kind):
                return nullcontext()
            return torch.autocast(kind, dtype=dtype, enabled=is_enabled)

        return again

    is_metered = is_in_torch_dispatch_mode(include_infra_modes=False)
    compiled = uncompiled if is_metered else nullcontext
    return (*map(context, kinds), attention_as_now(), compiled)
