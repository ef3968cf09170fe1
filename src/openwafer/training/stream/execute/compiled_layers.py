"""How a layer is called: by its ``forward``, or in the form that torch.compile has made of it."""

from collections.abc import Callable
from typing import Any, Final

from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

FORWARD: Final = "forward"
# A module on which ``compile()`` was called is called through this attribute.
COMPILED_CALL: Final = "_compiled_call_impl"


def call_of(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    """The attribute through which a module is called, and what it computes.

    Who takes the place of the compiled call stands outside of what is compiled, so that the
    compiler sees the layer alone. It gives up under a dispatch mode, and remembers that; so a pass
    that is metered takes the plain call.
    """
    compiled = module.__dict__.get(COMPILED_CALL)
    if compiled is None:
        return FORWARD, module.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_in_torch_dispatch_mode(include_infra_modes=False):
            return module._call_impl(*args, **kwargs)  # noqa: SLF001 - what compile() compiles
        return compiled(*args, **kwargs)

    return COMPILED_CALL, call
