"""What walks of steps have found, for the next plan of the process that asks the same.

A run that goes on, the next run of a sweep, and a plan before its run ask what was asked before.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar, cast

import torch
from torch import nn

from openwafer.training.stream.execute.reach import ATOMS
from openwafer.training.stream.plan.workload import Workload

MOST_WALKS: Final = 64

Found = TypeVar("Found")

# Each with what it was asked for, the last that was used at the end.
_known: deque[tuple[object, object]] = deque(maxlen=MOST_WALKS)


def remembered(workload: Workload, asked: object, walk: Callable[[], Found]) -> Found:
    """What a walk of a step finds, or an earlier one has found that was asked the same.

    Args:
        workload: the step; without a description it is always walked.
        asked: what decides beside the workload; compared.
        walk: is called where there is no such walk yet.
    """
    if workload.description is None:
        return walk()
    key = (workload.description, asked, [*_modules(workload.model)], _settings_of_torch())
    for one in _known:
        if one[0] == key:
            _known.remove(one)
            _known.append(one)
            return cast(Found, one[1])
    found = walk()
    _known.append((key, found))
    return found


def forget() -> None:
    """Walk anew what is asked from here on."""
    _known.clear()


def _modules(model: nn.Module) -> Iterator[tuple[object, ...]]:
    """What can be seen of each module without running it."""
    for name, module in model.named_modules():
        held = vars(module)
        yield name, type(module), {key: one for key, one in held.items() if type(one) in ATOMS}
        yield tuple((key, len(one)) for key, one in held.items() if key.endswith("_hooks"))
        yield tuple(held)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, tensor.shape, tensor.dtype, tensor.requires_grad


def _settings_of_torch() -> tuple[object, ...]:
    """By which torch chooses operators."""
    of_cuda = torch.backends.cuda
    return (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        of_cuda.flash_sdp_enabled(),
        of_cuda.mem_efficient_sdp_enabled(),
        of_cuda.math_sdp_enabled(),
        of_cuda.cudnn_sdp_enabled(),
    )
