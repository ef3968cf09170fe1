"""Models without the values of their weights: built so, or turned into their bf16 form."""

import copy
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models.transformers_model import is_of_library
from openwafer.training.torch_private import (
    TorchDispatchMode,
    Unguarded,
    num_dispatch_modes,
    pytree,
)

# What constructors raise for tensors without values; their own mistakes come up again elsewhere.
REFUSALS = (OpenwaferError, RuntimeError, TypeError, ValueError)
NO_OP = "for .*: copying from a non-meta parameter in the checkpoint to a meta parameter"


def build_hollow(make: Callable[[], nn.Module]) -> nn.Module | None:
    """A model whose parameters have shapes, dtypes and names, and neither memory nor values.

    Parameters are on the meta device while the constructor runs, so that nothing is drawn for
    them. Buffers are computed as ever.

    Args:
        make: builds the model.

    Returns:
        ``None`` where the constructor needs the weights: it reads their values, or draws random
        numbers for anything else, which depend on those drawn before; or where somebody refers to
        them weakly, as torch's recurrent modules do, so that none can be exchanged.
    """
    skipping = _SkippedDraws()
    hook = register_module_parameter_registration_hook(_to_meta)
    try:
        with skipping, _without_remarks():
            model = make()
    except REFUSALS:
        return None
    finally:
        hook.remove()
    if skipping.has_drawn or any(_has_meta(module) for module in model.modules()):
        return None
    if any(weakref.getweakrefs(parameter) for parameter in model.parameters()):
        return None
    for parameter in model.parameters():
        _replace(parameter, without_values(parameter, "cpu"))
    return model


def without_values(
    tensor: Tensor, device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor of the same shape and strides that takes no memory, since nobody writes to it."""
    dtype = dtype or tensor.dtype
    in_c_order = torch.empty(tensor.shape, device="meta").stride()
    if tensor.stride() == in_c_order or not any(tensor.stride()):
        return torch.empty((), dtype=dtype, device=device).expand(tensor.shape)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)


class _SkippedDraws(Unguarded, TorchDispatchMode):
    """Context in which random numbers are drawn for no tensor.

    Attributes:
        has_drawn: whether a tensor that may be more than a weight wanted some.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_drawn = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags:
            options.pop("generator", None)
            tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
            if not tensors:
                # A weight, or found out by what is left on the meta device.
                options["device"] = torch.device("meta")
            elif not all(tensor.is_meta for tensor in tensors):
                self.has_drawn = True
            elif func.overloadpacket.__name__.endswith("_") and num_dispatch_modes() == 0:
                # Filled in place, and no other mode looks on; torch would take the operator apart.
                return args[0]
        return func(*args, **options)


def _to_meta(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
    if parameter is None or parameter.is_meta:
        return
    if type(parameter) is not nn.Parameter:
        raise TypeError(f"{type(parameter).__name__} may be more than its values")
    _replace(parameter, torch.empty_like(parameter, device="meta"))


def _replace(parameter: nn.Parameter, data: Tensor) -> None:
    """Give a parameter other data, of another device too; it stays the same object."""
    other = nn.Parameter(data, requires_grad=parameter.requires_grad)
    torch.utils.swap_tensors(parameter, other)


def _has_meta(module: nn.Module) -> bool:
    """Whether the module holds a tensor without values that is no parameter."""
    values = [
        value for key, value in vars(module).items() if key not in ("_parameters", "_modules")
    ]
    return any(
        isinstance(leaf, Tensor) and leaf.is_meta and not isinstance(leaf, nn.Parameter)
        for leaf in pytree.tree_leaves(values)
    )


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Context in which torch does not remark that weights it loads are left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NO_OP, UserWarning)
        yield


Dtypes = dict[str, torch.dtype]


def take_bf16_form(model: nn.Module) -> None:
    """Give a model the dtypes of its bf16 form; parameters lose their values, buffers are rounded.

    The fp32 tensors of a module of the transformers library get what `from_pretrained` gives them
    with `dtype=torch.bfloat16`, which leaves some as they are: frequencies of rotary positions, and
    what the architecture names. Those of any other module become bf16, as `module.bfloat16()` has
    it. A parameter has the shape, the dtype and the device it will have, and no memory.
    """
    dtypes = _library_dtypes(model) if is_of_library(model) else {}
    for name, parameter in model.named_parameters():
        if _becomes_bf16(name, parameter, dtypes):
            parameter.data = without_values(parameter, parameter.device, torch.bfloat16)
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(path, recurse=False):
            if _becomes_bf16(name, buffer, dtypes):
                setattr(module, name.rpartition(".")[2], buffer.to(torch.bfloat16))


def _becomes_bf16(name: str, tensor: torch.Tensor, dtypes: Dtypes) -> bool:
    is_named = dtypes.get(name, torch.bfloat16) is torch.bfloat16
    return tensor.dtype is torch.float32 and is_named


def _library_dtypes(model: "transformers.PreTrainedModel") -> Dtypes:
    """What the library builds in bf16, less what it keeps in fp32 when it reads weights."""
    with torch.device("meta"):
        twin = type(model)._from_config(  # noqa: SLF001
            copy.deepcopy(model.config), dtype=torch.bfloat16
        )
    dtypes = {
        name: tensor.dtype for name, tensor in (*twin.named_parameters(), *twin.named_buffers())
    }
    kept = model._keep_in_fp32_modules_strict  # noqa: SLF001
    if kept:
        pattern = transformers.core_model_loading.build_glob_alternation(list(kept))[0]
        dtypes |= {name: torch.float32 for name in dtypes if pattern.search(name)}
    return dtypes
