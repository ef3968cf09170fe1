"""The backend of a device that is a simulated wafer: its kernels, and what their layers may be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from openwafer.diagnostics import OpenwaferError, error
from openwafer.fabric_device.linear import StreamedPacked, put, streamed_linear
from openwafer.fabric_device.norm import layer_norm, norm_of, rms_norm
from openwafer.fabric_device.wafer import Account, Wafer, num_tokens
from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_plan import Norm, ResidentPlan, plan_resident
from openwafer.training.metrics.fabric_report import FabricReport
from openwafer.training.sparsity.packed_linear import PackedLinear
from openwafer.training.stream.device.layer_backend import LayerCall, LayerKernel, not_computed
from openwafer.training.stream.stream_options import FabricOptions
from openwafer.training.torch_private import pytree

_LINEAR: Final = (nn.Linear, PackedLinear)
_LOCAL: Final = (nn.ReLU, nn.SiLU, nn.Identity)
_COMPUTED: Final[Mapping[Any, Callable[..., Any]]] = {
    F.linear: streamed_linear,
    F.rms_norm: rms_norm,
    F.layer_norm: layer_norm,
}
_CONTAINERS: Final = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


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

    Raises:
        OpenwaferError: the fabric has no room for the rectangle, or tokens do not divide.
    """

    def __init__(self, options: FabricOptions, num_tokens: int | None = None) -> None:
        self.options = options
        self.account = Account()
        self.most_features = 1
        self.norm: Norm | None = None
        self._wafers: dict[ResidentPlan, Wafer] = {}
        self._num_tokens = num_tokens
        self._plan(num_tokens or options.columns)

    def kernel(self, layer: str, module: nn.Module) -> LayerKernel:
        """See :class:`~openwafer.training.stream.device.layer_backend.LayerBackend`."""
        if any(fnmatchcase(layer, pattern) for pattern in self.options.host):
            return _OnHost(self.account)
        for name, part in module.named_modules():
            self._check(f"{layer}.{name}" if name else layer, part)
        if self._num_tokens is not None:
            self._plan(self._num_tokens)
        return _OnFabric(self, layer, module)

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
        # A model that comes later may have wider layers, or the first norm.
        plan = self._plan(num_tokens(shape))
        if plan not in self._wafers:
            self._wafers[plan] = Wafer(Resident(plan), self.account)
        return self._wafers[plan]

    def _plan(self, tokens: int) -> ResidentPlan:
        options = self.options
        return plan_resident(
            (options.rows, options.columns), tokens, self.most_features,
            arch=options.generation, num_ports=options.ports, norm=self.norm,
        )  # fmt: skip

    def _check(self, name: str, module: nn.Module) -> None:
        if isinstance(module, _LINEAR):
            self.most_features = max(self.most_features, module.in_features, module.out_features)
            if module.weight.dtype != torch.float32:
                raise not_computed(name, module, f"weights of {module.weight.dtype}")
            if isinstance(module, PackedLinear):
                module.other_product = StreamedPacked(self, name, module)
        elif isinstance(module, nn.RMSNorm | nn.LayerNorm):
            self._check_norm(name, module)
        elif not _is_local(module) and not list(module.children()):
            raise not_computed(name, module, f"a {type(module).__name__}")

    def _check_norm(self, name: str, module: nn.RMSNorm | nn.LayerNorm) -> None:
        norm = norm_of(module)
        if norm is None:
            raise not_computed(name, module, "norms of several dims, or without scales or shifts")
        if self.norm not in (None, norm):
            raise not_computed(name, module, f"{norm} beside {self.norm}")
        self.norm = norm
        self.most_features = max(self.most_features, norm.num_features)


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
    """Has a layer's own forward run, whose functions are computed on the wafer."""

    backend: Fabric
    layer: str
    module: nn.Module

    def forward(self, call: LayerCall) -> Any:
        """See :class:`LayerKernel`."""
        backend = self.backend

        def enter(value: Any) -> Any:
            is_given = isinstance(value, torch.Tensor) and value.is_floating_point()
            return put(backend.wafer(value.shape), value) if is_given else value

        _check_call(call)
        args, kwargs = pytree.tree_map(enter, (tuple(call.args), dict(call.kwargs)))
        with backend.account.inside(self.layer, self._refusal), _Streaming(backend):
            return call.function(*args, **kwargs)

    recompute = forward

    def _refusal(self, function: str) -> OpenwaferError:
        return not_computed(self.layer, self.module, f"torch's {function} inside it")


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
