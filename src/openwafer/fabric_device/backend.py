"""The backend of a device that is a simulated wafer: its kernels, and what their layers may be."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from openwafer.diagnostics import OpenwaferError, error
from openwafer.fabric_device.attention import attention
from openwafer.fabric_device.embedding import embedding, is_plain
from openwafer.fabric_device.linear import StreamedPacked, multiplying, put, streamed_linear
from openwafer.fabric_device.loss import cross_entropy
from openwafer.fabric_device.norm import layer_norm, norm_of, rms_norm
from openwafer.fabric_device.wafer import Account, Wafer, num_tokens
from openwafer.sdk.fabric import Transport
from openwafer.sdk.kernels.dry_resident import DryResident
from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_plan import (
    Heads,
    Norm,
    ResidentPlan,
    check_room,
    plan_resident,
    with_heads,
    with_precision,
)
from openwafer.training.metrics.fabric_report import FabricReport
from openwafer.training.sparsity.packed_linear import PackedLinear
from openwafer.training.stream.device.layer_backend import (
    LayerBackend,
    LayerCall,
    LayerKernel,
    not_computed,
    stand_in_loss,
)
from openwafer.training.stream.stream_options import FabricOptions
from openwafer.training.torch_private import pytree

_LINEAR: Final = (nn.Linear, PackedLinear)
_LOCAL: Final = (nn.ReLU, nn.SiLU, nn.Identity)
_COMPUTED: Final[Mapping[Any, Callable[..., Any]]] = {
    F.linear: streamed_linear,
    F.embedding: embedding,
    F.rms_norm: rms_norm,
    F.layer_norm: layer_norm,
}
_NUM_NAMED: Final = 8
"""Layers that a refusal names."""
_NO_ROOM: Final = "kernel-memory"
_CONTAINERS: Final = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class _Assumed:
    """What a walk takes for granted of what depends on data, or on a loop's own code.

    Attributes:
        are_different: whether all tokens of a micro-batch are.
        has_entropy: whether the loss of a loop is a cross-entropy of the model's output.
    """

    are_different: bool = False
    has_entropy: bool = False


_Walk = Callable[[LayerBackend], object]


class Fabric:
    """Has layers computed on a simulated wafer, whose activations stay there between them.

    It is a backend of :class:`~openwafer.training.stream.stream_options.StreamOptions`: weights
    stream in from the parameter store, and gradients of weights out. Layers are linear ones with or
    without bias, norms of one shape, and modules made of them, of ReLU, SiLU, GELU, sums and
    products of two activations; another one is refused by its name, unless `host` of the options
    has it.

    Args:
        options: the rectangle, and what is left to the host.
        num_tokens: of a micro-batch, where they are known before one comes.

    Attributes:
        foreseen_bytes: the most memory of a PE that the planned step takes, if there is one, or a
            call of other sizes.
        without_loss: numbers of tokens of whose logits a loop's own cross-entropy has no room, and
            torch computes it.

    Raises:
        OpenwaferError: the fabric has no room for the rectangle, or tokens do not divide.
    """

    def __init__(self, options: FabricOptions, num_tokens: int | None = None) -> None:
        self.options = options
        self.account = Account()
        self.most_features = 1
        self.norm: Norm | None = None
        self.foreseen_bytes = 0
        self.without_loss: set[int] = set()
        self._with_loss: set[int] = set()
        self._wafers: dict[int, Wafer] = {}
        self._programs: Mapping[int, ResidentPlan] = {}
        self._functions: dict[Callable[..., Any], Callable[..., Any]] = {
            F.scaled_dot_product_attention: partial(attention, self),
            F.cross_entropy: partial(cross_entropy, self),
        }
        self.num_tokens = num_tokens
        self._plan(num_tokens or options.columns)

    def kernel(self, layer: str, module: nn.Module) -> LayerKernel:
        """See :class:`~openwafer.training.stream.device.layer_backend.LayerBackend`."""
        if self._is_left_to_host(layer):
            return _OnHost(self.account)
        parts = {
            f"{layer}.{name}" if name else layer: part for name, part in module.named_modules()
        }
        for name, part in parts.items():
            self._check(name, part)
        if self.num_tokens is not None:
            self._plan(self.num_tokens)
        packed = {name: part for name, part in parts.items() if isinstance(part, PackedLinear)}
        products = tuple(StreamedPacked(self, name, part) for name, part in packed.items())
        return _OnFabric(self, layer, module, products)

    def expect(self, layers: Sequence[str]) -> None:
        """See :class:`~openwafer.training.stream.device.layer_backend.LayerBackend`.

        Raises:
            OpenwaferError: a pattern of `host` matches no layer.
        """
        for pattern in self.options.host:
            if not any(fnmatchcase(layer, pattern) for layer in layers):
                some = ", ".join(map(repr, layers[:_NUM_NAMED]))
                raise error(
                    "fabric-host",
                    f"fabric.host has {pattern!r}, which matches none of the {len(layers)} layers: "
                    f"{some}{', ...' if len(layers) > _NUM_NAMED else ''}",
                    help="write a layer's name, or a pattern such as 'layers.*'; "
                    "streaming.layers says which modules are layers",
                )

    def try_step(self, walk: _Walk) -> None:
        """See :class:`~openwafer.training.stream.device.layer_backend.LayerBackend`.

        What embeddings take depends on how many different tokens a micro-batch has. So the step is
        walked with as few as there may be, which is refused, and as many, which is warned of. A
        loop's own loss, of which nobody knows yet, is taken for a cross-entropy where that has
        room. The programs of wafers are those that the walk has found.

        Raises:
            OpenwaferError: ``kernel-memory``, a PE has no room for what the step keeps there; or
                what else a walk has met.
        """
        assumed = _Assumed()
        found = _walked(self, walk, assumed)
        self._with_loss |= found.classified
        self.without_loss -= found.classified
        if found.stands_in:
            with_loss = _Assumed(has_entropy=True)
            if walked := _walked_if_room(self, walk, with_loss, _LOSS_LEFT):
                assumed, found = with_loss, walked
            else:
                self.without_loss |= found.stands_in
        if found.has_embedding:
            assumed = replace(assumed, are_different=True)
            found = _walked_if_room(self, walk, assumed, _TOKENS_MAY_LACK_ROOM) or found
        self.most_features = found.most_features
        self._programs = {**self._programs, **found.programs}
        self.foreseen_bytes = max(self.foreseen_bytes, found.account.memory_bytes)

    def _is_left_to_host(self, layer: str) -> bool:
        return any(fnmatchcase(layer, pattern) for pattern in self.options.host)

    def report(self) -> FabricReport:
        """What was done up to now."""
        options, account = self.options, self.account
        return FabricReport(
            rows=options.rows,
            columns=options.columns,
            generation=options.generation,
            passes=account.tally.passes(),
            copies_on=account.copies_on,
            copies_off=dict(account.copies_off),
            host_calls=dict(account.host_calls),
            memory_bytes=account.memory_bytes,
            loads=account.loads,
            transport=options.transport,
            copy_cycles=account.copy_cycles,
            outlook=()
            if account.plan is None
            else account.tally.outlook(account.plan, account.panels),
        )

    def close(self) -> None:
        """End the runs of the simulated wafers."""
        for wafer in self._wafers.values():
            wafer.resident.close()
        self._wafers.clear()

    def wafer(self, shape: torch.Size) -> Wafer:
        """The wafer for tokens of a tensor (..., features).

        Raises:
            OpenwaferError: they do not divide, or there is no room for the widest layer.
        """
        tokens = num_tokens(shape)
        if tokens not in self._wafers:
            program = self._programs.get(tokens) or self._plan(tokens)
            self._wafers[tokens] = Wafer(self._resident(program), self.account, self._functions)
        self._load(self._wafers[tokens])
        return self._wafers[tokens]

    @property
    def programs(self) -> Mapping[int, ResidentPlan]:
        """What wafers have to compute, by the number of their tokens."""
        return {tokens: wafer.resident.plan for tokens, wafer in self._wafers.items()}

    def seen(self, ids: torch.Tensor, num_entries: int) -> torch.Tensor:
        """The tokens that an embedding of so many entries is taken to be asked for."""
        return ids

    @property
    def rows(self) -> int:
        """Of PEs."""
        return self.options.rows

    def widen(self, features: int) -> None:
        """Have wafers take a layer of so many inputs or outputs."""
        self.most_features = max(self.most_features, features)

    def attend(self, wafer: Wafer, heads: Heads) -> None:
        """Have a wafer's program compute such attention.

        Raises:
            OpenwaferError: heads or sequences do not divide, or there is no room.
        """
        self._load(wafer, heads)

    def classify(self, wafer: Wafer, num_classes: int) -> None:
        """Have a wafer's program compute the loss of so many classes.

        Raises:
            OpenwaferError: there is no room.
        """
        self._load(wafer, num_classes=num_classes)

    def leave_loss(self, tokens: int, cause: OpenwaferError) -> None:
        """Let torch compute losses of so many tokens, as there is no room for one; say so.

        Raises:
            OpenwaferError: the cause, where it is another, or the step was planned with its loss.
        """
        if cause.diagnostics[0].code != _NO_ROOM or tokens in self._with_loss:
            raise cause
        self.without_loss.add(tokens)
        _warn(_LOSS_LEFT, cause)

    def _resident(self, program: ResidentPlan) -> Resident:
        return Resident(program, self.options.account, Transport(self.options.transport))

    def _load(self, wafer: Wafer, heads: Heads | None = None, num_classes: int = 0) -> None:
        """Give a wafer the program of all layers that have come up to now."""
        known = wafer.resident.plan
        plan = self._plan(known.num_tokens)
        heads = heads or known.heads
        if heads is not None:
            plan = with_heads(plan, heads)
        plan = replace(plan, num_classes=num_classes or known.num_classes)
        if plan != known:
            check_room(plan)
            wafer.resident.become(plan)
            self.account.loads += 1

    def _plan(self, tokens: int) -> ResidentPlan:
        options = self.options
        plan = plan_resident(
            (options.rows, options.columns), tokens, self.most_features,
            arch=options.generation, num_ports=options.ports, norm=self.norm,
        )  # fmt: skip
        return with_precision(plan, options.precision)

    def _check(self, name: str, module: nn.Module) -> None:
        if isinstance(module, _LINEAR):
            self.widen(max(module.in_features, module.out_features))
            if module.weight.dtype != torch.float32:
                raise not_computed(name, module, f"weights of {module.weight.dtype}")
        elif isinstance(module, nn.RMSNorm | nn.LayerNorm):
            self._check_norm(name, module)
        elif isinstance(module, nn.Embedding):
            if not is_plain(module) or module.weight.dtype != torch.float32:
                raise not_computed(name, module, "embeddings with other options, or not of f32")
            self.widen(module.embedding_dim)
        elif not _is_local(module) and not list(module.children()):
            raise not_computed(name, module, f"a {type(module).__name__}")

    def _check_norm(self, name: str, module: nn.RMSNorm | nn.LayerNorm) -> None:
        norm = norm_of(module)
        if norm is None:
            raise not_computed(name, module, "norms of several dims, or without scales or shifts")
        if self.norm not in (None, norm):
            raise not_computed(name, module, f"{norm} beside {self.norm}")
        self.norm = norm
        self.widen(norm.num_features)


_LOSS_LEFT: Final = (
    "a cross-entropy of the model's output has no room on the wafer, and torch computes it in host "
    "memory"
)
_TOKENS_MAY_LACK_ROOM: Final = (
    "a micro-batch may have no room on the wafer, by how many different tokens it has"
)


def _warn(what: str, cause: OpenwaferError) -> None:
    warnings.warn(f"{what}: {cause.diagnostics[0].message}", stacklevel=3)


class _DryFabric(Fabric):
    """Counts what a step takes of a fabric's memory, and computes nothing.

    Args:
        fabric: of whose options, and with whose programs to begin.
        assumed: of what the walk does not see.

    Attributes:
        has_embedding: whether the step has some.
        classified: numbers of tokens of whose logits it computes a cross-entropy.
        stands_in: those of which a loop may compute its own.
    """

    def __init__(self, fabric: Fabric, assumed: _Assumed) -> None:
        super().__init__(fabric.options, fabric.num_tokens)
        self.most_features, self.norm = fabric.most_features, fabric.norm
        self._programs = fabric.programs
        self._assumed = assumed
        self.has_embedding = False
        self.classified: set[int] = set()
        self.stands_in: set[int] = set()
        self._functions[stand_in_loss] = self._stand_in

    def seen(self, ids: torch.Tensor, num_entries: int) -> torch.Tensor:
        """See :class:`Fabric`."""
        self.has_embedding = True
        ids = torch.arange(ids.numel()).view(ids.shape) if self._assumed.are_different else ids * 0
        return ids % num_entries

    def classify(self, wafer: Wafer, num_classes: int) -> None:
        """See :class:`Fabric`."""
        self.classified.add(wafer.resident.plan.num_tokens)
        super().classify(wafer, num_classes)

    def leave_loss(self, tokens: int, cause: OpenwaferError) -> None:
        """See :class:`Fabric`; a walk refuses what has no room."""
        raise cause

    def _stand_in(self, output: torch.Tensor) -> torch.Tensor | None:
        """The loss that a loop is taken to compute of an output; None where torch does."""
        self.stands_in.add(num_tokens(output.shape))
        if not self._assumed.has_entropy or output.ndim < 2:
            return None
        labels = torch.zeros(num_tokens(output.shape), dtype=torch.int64)
        return cross_entropy(
            self, output.flatten(0, -2), labels, ignore_index=-100, reduction="mean"
        )

    def _resident(self, program: ResidentPlan) -> Resident:
        return DryResident(program)


def _walked(fabric: Fabric, walk: _Walk, assumed: _Assumed) -> _DryFabric:
    """What a step has asked for; it has run with the programs of a first one, as later steps do."""
    first = _DryFabric(fabric, assumed)
    walk(first)
    later = _DryFabric(first, assumed)
    walk(later)
    return later


def _walked_if_room(
    fabric: Fabric, walk: _Walk, assumed: _Assumed, otherwise: str
) -> _DryFabric | None:
    """The same; None where there is no room, with a warning of what follows from it."""
    try:
        return _walked(fabric, walk, assumed)
    except OpenwaferError as cause:
        if cause.diagnostics[0].code != _NO_ROOM:
            raise
        _warn(otherwise, cause)
        return None


@dataclass
class _OnHost:
    """Has torch compute a layer on the host, and counts its calls."""

    account: Account

    def forward(self, call: LayerCall) -> Any:
        """See :class:`LayerKernel`."""
        self.account.host_calls[call.layer] += 1
        return call.by_torch()

    recompute = forward


@dataclass
class _OnFabric:
    """Has a layer's own forward run, whose functions are computed on the wafer.

    Attributes:
        backend: of the device.
        layer: its name.
        module: it.
        products: of the sparse weights in it.
    """

    backend: Fabric
    layer: str
    module: nn.Module
    products: tuple[StreamedPacked, ...]

    def forward(self, call: LayerCall) -> Any:
        """See :class:`LayerKernel`."""
        backend = self.backend
        most = max(map(_tokens_of, pytree.tree_leaves((call.args, call.kwargs))), default=0)

        def enter(value: Any) -> Any:
            # What has fewer tokens, as a table has, is put beside activations where it meets them.
            is_given = 0 < _tokens_of(value) == most
            return put(backend.wafer(value.shape), value) if is_given else value

        _check_call(call)
        args, kwargs = pytree.tree_map(enter, (tuple(call.args), dict(call.kwargs)))
        with (
            backend.account.inside(self.layer, self._refusal),
            multiplying(self.products),
            _Streaming(backend),
        ):
            return call.function(*args, **kwargs)

    recompute = forward

    def _refusal(self, function: str) -> OpenwaferError:
        return not_computed(self.layer, self.module, f"torch's {function} inside it")


def _tokens_of(value: Any) -> int:
    """Of an activation; 0 of what is none."""
    is_given = isinstance(value, torch.Tensor) and value.is_floating_point()
    return num_tokens(value.shape) if is_given else 0


def _is_local(module: nn.Module) -> bool:
    """Whether a PE computes it of its own values."""
    if isinstance(module, nn.Dropout):
        return module.p == 0
    if isinstance(module, nn.GELU):
        return module.approximate == "tanh"
    return isinstance(module, (*_LOCAL, *_CONTAINERS))


def _check_call(call: LayerCall) -> None:
    for value in pytree.tree_leaves((call.args, call.kwargs)):
        if isinstance(value, torch.Tensor) and value.dtype not in (torch.float32, torch.int64):
            raise not_computed(call.layer, call.module, f"tensors of {value.dtype}")
    if torch.is_autocast_enabled("cpu"):
        raise error(
            "fabric-precision",
            f"layer {call.layer!r} is computed under autocast to "
            f"{torch.get_autocast_dtype('cpu')}, and the fabric computes f32",
            help="set precision to fp32",
        )


class _Streaming(TorchFunctionMode):
    """Computes functions that have weights on the wafer, while a layer's forward runs."""

    def __init__(self, backend: Fabric) -> None:
        super().__init__()
        self._backend = backend

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        computed, named = _COMPUTED.get(func), dict(kwargs or {})
        if computed is None:
            return func(*args, **named)
        if "input" in named:
            args = (named.pop("input"), *args)
        return computed(self._backend, *args, **named)
