"""What a pass does not do, refused where it is met."""

from collections.abc import Iterator
from contextlib import contextmanager

from openwafer.diagnostics import OpenwaferError, error

# Torch's words where a transform meets hooks for saved tensors.
_MEETS_HOOKS = "don't yet support saved tensor hooks"


def graph_of_backward(where: str) -> OpenwaferError:
    """The error of a backward that makes a graph and has come to a layer or a weight."""
    return error(
        "backward-of-backward",
        f"backward(create_graph=True) came to the streamed {where}: its graph would keep weights "
        "that leave the device",
        help="leave create_graph out, or give a device memory in which the whole model is resident",
    )


def hooks_passed_over(layer: str, owner: str) -> OpenwaferError:
    """The error of a forward inside hooks for saved tensors that would not see what it saves."""
    where = f"layer {layer!r}" if layer else "the streamed model"
    return error(
        "saved-tensor-hooks",
        f"{where} runs inside saved_tensors_hooks of {owner}, and what it saves for its backward "
        "does not go through them",
        help="leave them out; activations: offload puts into host memory what layers save",
    )


@contextmanager
def transforms_refused(where: str) -> Iterator[None]:
    """Context of a forward, whose saved tensors are seen by hooks.

    Raises:
        OpenwaferError: ``streamed-under-transform`` where it differentiates by torch.func.
    """
    try:
        yield
    except RuntimeError as cause:
        if _MEETS_HOOKS not in str(cause):
            raise
        raise error(
            "streamed-under-transform",
            f"the forward of {where!r} differentiates by torch.func, which cannot see weights come "
            "and go",
            help="differentiate with torch.autograd.grad or torch.autograd.functional",
        ) from cause
