"""Parameters whose weights are away in the parameter store: a use of them says so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.stream.execute.arriving_gradients import OWN_GRAD

_READABLE: Final = (
    *("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize", "requires_grad"),
    *("grad", "grad_fn", "is_leaf", "is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized"),
    *("is_nested", "is_mkldnn", "output_nr", "retains_grad", "_version", "_backward_hooks"),
    "_post_accumulate_grad_hooks",
)
_WRITABLE: Final = (
    *("data", "grad", "requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks"),
)
_CALLABLE: Final = (
    *("size", "dim", "numel", "nelement", "ndimension", "element_size", "stride", "get_device"),
    *("is_floating_point", "is_complex", "is_contiguous", "requires_grad_", "register_hook"),
    "register_post_accumulate_grad_hook",
)
NEEDS_NO_WEIGHTS: Final = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _READABLE]
    + [getattr(torch.Tensor, name).__set__ for name in _WRITABLE]
    + [getattr(torch.Tensor, name) for name in _CALLABLE]
    + [torch.is_floating_point, torch.is_complex, torch.numel]
)


@dataclass(frozen=True)
class Home:
    """Where a parameter's weights and gradient are when it is released.

    Attributes:
        name: of the parameter.
        write: gives it other weights.
        check_gradient: raises when its gradient is there and not in the parameter.
        forget_gradient: forgets the gradient that is there.
        is_saving: whether ``state_dict`` asks, whose tensors are filled in afterwards.
    """

    name: str
    write: Callable[[str, torch.Tensor], None]
    check_gradient: Callable[[str], None]
    forget_gradient: Callable[[str], None]
    is_saving: Callable[[], bool]


class ReleasedParameter(nn.Parameter):
    """A parameter that knows its shape and not its weights.

    Only copies *into* it reach the store, which is how ``load_state_dict`` writes. Every other use
    of its weights is the error ``streamed-weight-read``.
    """

    home: Home

    @property
    def grad(self) -> torch.Tensor | None:
        self.home.check_gradient(self.home.name)
        return OWN_GRAD.__get__(self)  # type: ignore[no-any-return]

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if value is not None:
            raise error(
                "streamed-gradient-set",
                f"the gradient of {self.home.name!r} cannot be set: it belongs in the parameter "
                "store, not in parameter.grad",
                help="make gradients by backward, and change them with hooks on the parameter",
            )
        self.home.forget_gradient(self.home.name)
        OWN_GRAD.__set__(self, None)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.home.name}: {tuple(self.shape)} {self.dtype}, in the parameter store"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in NEEDS_NO_WEIGHTS or _is_saved(func, args):
            # What runs for an ordinary parameter.
            return nn.Parameter.__torch_function__(func, types, args, kwargs or {})
        released = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, cls)]
        if func is torch.Tensor.copy_ and len(released) == 1 and args[0] is released[0]:
            released[0].home.write(released[0].home.name, args[1])
            return released[0]
        raise _read_of(released[0])


def _is_saved(func: Callable[..., Any], args: Sequence[Any]) -> bool:
    is_detach = func is torch.Tensor.detach and isinstance(args[0], ReleasedParameter)
    return is_detach and args[0].home.is_saving()


def _read_of(parameter: ReleasedParameter) -> OpenwaferError:
    return error(
        "streamed-weight-read",
        f"the weights of {parameter.home.name!r} are in the parameter store, and on the device "
        "only while their layer runs",
        help="read weights with streamed.weights() or model.state_dict(), write them with "
        "model.load_state_dict(); make copies of the model, losses over its weights and changes "
        "of its dtype before it is streamed, or after streamed.close()",
    )


def home_of(parameter: nn.Parameter, home: Home | None) -> None:
    """Tell a parameter where its weights are when they are away; ``None`` ends that."""
    if home is None:
        parameter.__dict__.pop("home", None)
    else:
        parameter.home = home  # type: ignore[attr-defined]
