# ruff: noqa: SLF001  (this is the one place for such names)
"""Names that torch does not promise to keep and that nothing public replaces, each with its reason.

The rest of the package takes them from here, so that a release of torch that moves one breaks this
file alone. ``tests/training/test_torch_private.py`` says what is expected of each. What
all dispatch modes of this package do is here, too: against torch's compiler, and with arguments.
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import TracebackType
from typing import Any, Final

import torch
from torch import nn
from torch._C import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    DispatchKey,
    _len_torch_dispatch_stack,
    _set_dispatch_mode,
    _TorchDispatchModeKey,
    _unset_dispatch_mode,
)

# Public in torch.distributed, which does not export them to a type checker.
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch._ops import OpOverload

# A dry run is a step on them: sizes and types without memory.
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, is_fake
from torch.autograd import forward_ad
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

# How torch's own functions take containers of tensors apart.
from torch.utils import _pytree as pytree
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

# The documented way to see each operator, in a module that is not.
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    is_in_torch_dispatch_mode,
)
from torch.utils.hooks import RemovableHandle

__all__ = [
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "DispatchKey",
    "FakeTensor",
    "FakeTensorMode",
    "OpOverload",
    "PrefixStore",
    "Store",
    "TCPStore",
    "TorchDispatchMode",
    "is_fake",
    "is_in_torch_dispatch_mode",
    "pytree",
    "tensors_in",
]

# Of dispatch modes. Inside one, work on real tensors leaves all of them for a while; one mode that
# answers an operator by itself takes itself off, without a context manager's cost per operator.
disable_current_modes: Final = _disable_current_modes
num_dispatch_modes: Final = _len_torch_dispatch_stack
set_dispatch_mode: Final = _set_dispatch_mode
unset_dispatch_mode: Final = _unset_dispatch_mode
DispatchModeKey: Final = _TorchDispatchModeKey
# Of function modes: the innermost one; None outside of all.
current_function_mode: Final[Any] = torch.overrides._get_current_function_mode
# An implementation of an operator that ends with its context; `torch.library.Library` stays.
scoped_library: Final = torch.library._scoped_library

# What `scaled_dot_product_attention` is on a CPU, with the logarithms of its sums, which nothing
# public gives.
cpu_attention: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
cpu_attention_backward: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

# Of autograd: the number of the backward that this thread is in, -1 outside; the number that the
# next node gets; a switch that is no context; the hooks of `saved_tensors_hooks` that are open.
graph_task_id: Final = torch._C._current_graph_task_id
next_sequence_nr: Final = torch._C._autograd._get_sequence_nr
set_grad_enabled: Final = torch._C._set_grad_enabled
top_saved_tensors_hooks: Final = torch._C._autograd._top_saved_tensors_default_hooks
push_saved_tensors_hooks: Final = torch._C._autograd._push_saved_tensors_default_hooks
pop_saved_tensors_hooks: Final = torch._C._autograd._pop_saved_tensors_default_hooks
# What runs a backward, and calls when it ends.
execution_engine: Final[Any] = torch.autograd.Variable._execution_engine
# The innermost transform of torch.func; `None` outside.
functorch_interpreter: Final = torch._C._functorch.peek_interpreter_stack

# Of tensors: the attribute that counts writes; one that is read negated; what `Module.to` asks; a
# tensor without memory of its own; how many tensors a storage has, by its address.
counted_writes: Final[Any] = torch.Tensor._version
neg_view: Final = torch._neg_view
has_compatible_shallow_copy_type: Final = torch._has_compatible_shallow_copy_type
make_wrapper_subclass: Final = torch.Tensor._make_wrapper_subclass
storage_use_count: Final = torch._C._storage_Use_Count

# The kernels below torch.optim and torch.amp, whose own functions keep state or cost more.
fused_adam: Final = torch._fused_adam_
fused_adamw: Final = torch._fused_adamw_
fused_sgd: Final = torch._fused_sgd_
unscale_and_check: Final = torch._amp_foreach_non_finite_check_and_unscale_
update_scale: Final = torch._amp_update_scale_
group_tensors: Final = _group_tensors_by_device_and_dtype

# What all batch norms are.
NormBase = _NormBase
# The store by which the processes of the default group met.
default_store: Final = _get_default_store


@cache
def _attributes_of_fakes(device: torch.device) -> dict[str, object]:
    return vars(FakeTensor(FakeTensorMode(), torch.empty(0, device="meta"), device))


def make_fake(mode: FakeTensorMode, bare: torch.Tensor, device: torch.device) -> FakeTensor:
    """A fake tensor over one on the meta device that records nothing.

    As torch's constructor makes it, which takes five times as long: it checks what it is given, and
    sets one by one what all of them have.
    """
    made: FakeTensor = torch.Tensor._make_subclass(
        FakeTensor, bare, False, dispatch_device=True, device_for_backend_keys=device
    )
    torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
    made.__dict__ = {**_attributes_of_fakes(device), "fake_mode": mode}
    return made


def active_ddp_module() -> nn.Module | None:
    """The model of DistributedDataParallel whose forward is under way."""
    module: nn.Module | None = DistributedDataParallel._get_active_ddp_module()
    return module


def forward_level() -> int:
    """Level of ``torch.autograd.forward_ad`` that is open; -1 where none is."""
    level: int = forward_ad._current_level
    return level


def step_pre_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """An optimizer's hooks that run before its step, in their order."""
    return list(optimizer._optimizer_step_pre_hooks.values())


def register_first_post_hook(optimizer: torch.optim.Optimizer, hook: Any) -> RemovableHandle:
    """Register a hook that runs behind an optimizer's step, before those that are there already."""
    hooks = optimizer._optimizer_step_post_hooks
    earlier = dict(hooks)
    hooks.clear()
    handle = optimizer.register_step_post_hook(hook)
    hooks.update(earlier)
    return handle


def clear_cublas_workspaces() -> None:
    """Give back what cuBLAS keeps for products; torch has it only where it was built for CUDA."""
    torch._C._cuda_clearCublasWorkspaces()


def is_of_compiler(module: nn.Module) -> bool:
    """Whether ``torch.compile`` made a module."""
    # Whoever has compiled anything has imported the compiler, at 80 MB and seconds.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and isinstance(module, frames.OptimizedModule)


def uncompiled() -> AbstractContextManager[object]:
    """Context in which what torch.compile has compiled runs as it was written."""
    # Whoever has compiled anything has imported the compiler, at 80 MB and seconds.
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )


class Unguarded:
    """A dispatch mode under which nothing is compiled; to be named before torch's own class.

    Torch would wrap each operator in a guard of its compiler, at twice the cost of counting bytes,
    and import that compiler for it. The compiler would trace the mode itself.
    """

    _stances: list[AbstractContextManager[object]]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Any:
        entered = super().__enter__()  # type: ignore[misc]
        vars(self).setdefault("_stances", []).append(uncompiled())
        self._stances[-1].__enter__()
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self._stances.pop().__exit__(kind, value, trace)
        return super().__exit__(kind, value, trace)  # type: ignore[misc]


def tensors_in(values: Iterable[object]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results, those in lists one by one."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found
