"""What a backward raises belongs to the loop's backward, and not to the forward that plans it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from openwafer.diagnostics import OpenwaferError, error


@contextmanager
def walked_backward(*, is_fake: bool) -> Iterator[None]:
    """Context of the backward of a walk.

    Args:
        is_fake: whether tensors have no values, which may be what code stumbles over: the step is
            walked with values then.

    Raises:
        OpenwaferError: ``backward-raises``.
    """
    try:
        yield
    except OpenwaferError:
        raise
    except Exception as cause:
        if is_fake:
            raise RuntimeError("a backward fails on tensors without values") from cause
        raise error(
            "backward-raises",
            f"the backward of this step raises {cause!r}, and no plan can tell what it needs "
            "behind that",
            help="let the first step end; what is to raise in it may be a hook of a module or of a "
            "parameter",
        ) from cause


def let_hooks_raise(model: nn.Module, *, is_fake: bool) -> None:
    """Let a walk go on behind backward hooks of modules that raise.

    Args:
        model: a copy.
        is_fake: see :func:`walked_backward`.
    """
    for module in model.modules():
        for hooks in (module._backward_hooks, module._backward_pre_hooks):  # noqa: SLF001 - none public
            hooks.update({key: partial(_call, hook, is_fake) for key, hook in hooks.items()})


def _call(hook: Callable[..., Any], is_fake: bool, *args: Any) -> Any:
    try:
        return hook(*args)
    except OpenwaferError:
        raise
    except Exception:
        if is_fake:
            raise
        return None
