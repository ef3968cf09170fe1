"""Finds the weights of a model that hold experts, which can stream one by one.

Such a weight belongs to a module that says how many experts it has, and has one of them at each
place along its first dim; so the classes of transformers that take an experts implementation do.
What such a module's code does with the weight beside taking experts from it, the dry run finds out.
"""

from collections.abc import Iterator
from typing import Final

from torch import nn

from openwafer.training.store.layout import PAGE_BYTES, strides_of
from openwafer.training.stream.execute.compiled_layers import COMPILED_CALL
from openwafer.training.stream.link.updates import Updater

# The records of smaller ones would be mostly padding.
MIN_EXPERT_BYTES: Final = PAGE_BYTES // 2


def expert_weights(model: nn.Module, updater: Updater) -> dict[str, int]:
    """Names of the weights whose experts can stream one by one, with their numbers of experts.

    Args:
        model: any module; its parameters may be on the meta device.
        updater: whose rules must be able to update experts by themselves.
    """
    return {
        name: len(weight)
        for name, weight in _candidates(model)
        if updater.can_slice(name, weight[0].numel())
    }


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    num_names: dict[int, int] = {}
    for _, weight in model.named_parameters(remove_duplicate=False):
        num_names[id(weight)] = num_names.get(id(weight), 0) + 1
    compiled = {
        inner
        for module in model.modules()
        if module.__dict__.get(COMPILED_CALL) is not None
        for inner in module.modules()
    }
    for path, module in model.named_modules():
        num_experts = getattr(module, "num_experts", None)
        if type(num_experts) is not int or num_experts < 2 or module in compiled:
            continue
        for attribute, weight in module.named_parameters(recurse=False):
            is_shaped = weight.ndim >= 3 and len(weight) == num_experts
            if is_shaped and num_names[id(weight)] == 1 and _is_plain(weight):
                yield f"{path}.{attribute}" if path else attribute, weight


def _is_plain(weight: nn.Parameter) -> bool:
    """Whether nobody looks at the weight, and it lies in memory as its experts would."""
    is_watched = weight._backward_hooks or weight._post_accumulate_grad_hooks  # noqa: SLF001
    is_large = weight[0].nbytes >= MIN_EXPERT_BYTES
    is_dense = strides_of(weight) is None and weight.is_floating_point()
    return is_large and is_dense and not is_watched
