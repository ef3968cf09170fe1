"""Contexts of torch that a forward has open where it stops, and others go on in its thread.

torch keeps for a thread whether autograd records, autocast, hooks for saved tensors, and a few more
switches. A model may set one around several layers. Micro-batches that take turns at each layer
would find what the others have set, so each gets its own back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.torch_private import (
    pop_saved_tensors_hooks,
    push_saved_tensors_hooks,
    set_grad_enabled,
    top_saved_tensors_hooks,
)

Hooks: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]

_SWITCHES: Final[tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]] = (
    (torch.is_grad_enabled, set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
)
_KINDS: Final = ("cpu", "cuda")


@dataclass(frozen=True)
class OpenContexts:
    """What contexts have set in this thread.

    Attributes:
        switches: in the order of the table above.
        autocast: by kind of device, whether it is on, and its dtype.
        autocast_depth: how many contexts of it are open.
        hooks: pairs for saved tensors, the outermost first.
        is_inference: whether one is of ``torch.inference_mode()``.
    """

    switches: tuple[Any, ...]
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    autocast_depth: int
    hooks: tuple[Hooks, ...]
    is_inference: bool

    @classmethod
    def now(cls) -> "OpenContexts":
        """Those that are open."""
        kinds = ((k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in _KINDS)
        hooks = _take_hooks()
        _push_hooks(hooks)
        switches = tuple(read() for read, _ in _SWITCHES)
        is_inference = torch.is_inference_mode_enabled()
        return cls(switches, tuple(kinds), autocast_depth(), hooks, is_inference)

    def restore(self) -> None:
        """Let these be open, and no others; autocast keeps no cast.

        Raises:
            OpenwaferError: ``stopped-in-inference``.
        """
        if torch.is_inference_mode_enabled() is not self.is_inference:
            raise error(
                "stopped-in-inference",
                "the model's forward calls a streamed layer inside torch.inference_mode(), which "
                "micro-batches that take turns at a layer cannot leave",
                help="write torch.no_grad() in its place",
            )
        self.restore_all_but_inference()

    def restore_all_but_inference(self) -> None:
        """As :meth:`restore`, whether or not a context of inference is open."""
        for (_, write), value in zip(_SWITCHES, self.switches, strict=True):
            write(value)
        for kind, is_enabled, dtype in self.autocast:
            torch.set_autocast_enabled(kind, is_enabled)
            torch.set_autocast_dtype(kind, dtype)
        for _ in range(autocast_depth(), self.autocast_depth):
            torch.autocast_increment_nesting()
        for _ in range(self.autocast_depth, autocast_depth()):
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        _take_hooks()
        _push_hooks(self.hooks)


def autocast_depth() -> int:
    """How many contexts of autocast are open, those that turn it off included."""
    depth: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def foreign_hooks() -> str | None:
    """Where the hooks for saved tensors are from that this program's own pass over.

    Those of torch put tensors aside or compute them again and change no value: ``None``, as where
    there are none.
    """
    hooks = _take_hooks()
    _push_hooks(hooks)
    owners = (_owner_of(pack) for pack, _ in reversed(hooks))
    owner = next((one for one in owners if not _is_within(one, "openwafer")), None)
    return None if owner is None or _is_within(owner, "torch") else owner


def hooks_passed_over(layer: str, owner: str) -> OpenwaferError:
    """The error of a forward inside hooks for saved tensors that would not see what it saves."""
    where = f"layer {layer!r}" if layer else "the streamed model"
    return error(
        "saved-tensor-hooks",
        f"{where} runs inside saved_tensors_hooks of {owner}, and what it saves for its backward "
        "does not go through them",
        help="leave them out; activations: offload puts into host memory what layers save",
    )


def _owner_of(function: Callable[..., Any]) -> str:
    """The module of Python that a function is from."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__module__", None) or "Python"


def _is_within(module: str, package: str) -> bool:
    return module.partition(".")[0] == package


def _take_hooks() -> tuple[Hooks, ...]:
    taken: list[Hooks] = []
    while (top := _innermost_hooks()) is not None:
        taken.append(top)
        pop_saved_tensors_hooks()
    return tuple(reversed(taken))


def _innermost_hooks() -> Hooks | None:
    # torch's own types leave out that there may be none.
    found: Any = top_saved_tensors_hooks(True)
    return None if found is None else (found[0], found[1])


def _push_hooks(hooks: tuple[Hooks, ...]) -> None:
    for pair in hooks:
        push_saved_tensors_hooks(*pair)
