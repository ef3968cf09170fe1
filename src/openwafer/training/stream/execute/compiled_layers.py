"""How a layer is called: by its ``forward``, or in the form that torch.compile has made of it."""

from collections.abc import Callable
from typing import Any, Final

from torch import nn

FORWARD: Final = "forward"
# A module on which ``compile()`` was called is called through this attribute.
COMPILED_CALL: Final = "_compiled_call_impl"


def call_of(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    """The attribute through which a module is called, and what it computes.

    Who takes the place of the compiled call stands outside of what is compiled, so that the
    compiler sees the layer alone.
    """
    compiled = module.__dict__.get(COMPILED_CALL)
    return (FORWARD, module.forward) if compiled is None else (COMPILED_CALL, compiled)
