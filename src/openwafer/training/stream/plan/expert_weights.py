"""Finds the experts of a model, those that can stream one by one, and what chooses among them.

A weight of experts belongs to a module that says how many it has, and has one of them at each place
along its first dim; so the classes of transformers that take an experts implementation do. What
such a module's code does with the weight beside taking experts from it, the dry run finds out.
"""

from collections.abc import Iterator
from typing import Final

from torch import nn

from openwafer.training.store.layout import PAGE_BYTES, strides_of
from openwafer.training.stream.execute.attachment import COMPILED_CALL
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


def routers(model: nn.Module) -> set[str]:
    """Names of the weights that choose among experts, or weigh those that all tokens come to.

    They stand beside the experts, as maps to as many features as there are experts, or to one.
    Experts are here, too, what a module of anybody's holds in a list or in a weight of 3 dims.
    """
    sizes = {id(module): number for _, module, number in modules_of_experts(model)}
    found = set()
    for path, module in model.named_modules():
        numbers = {sizes[id(child)] for child in module.children() if id(child) in sizes}
        beside = module.named_modules() if numbers else module.named_children()
        numbers = {1, *numbers} if numbers else _lengths(module)
        within = {
            one for child in module.children() if id(child) in sizes for one in child.modules()
        }
        for name, other in beside:
            for attribute, weight in other.named_parameters(recurse=False):
                if weight.ndim == 2 and len(weight) in numbers and other not in within:
                    found.add(".".join(filter(None, (path, name, attribute))))
    return found


def _lengths(module: nn.Module) -> set[int]:
    """Of a module's lists of modules of one class, and of its own weights of 3 dims."""
    lists = (child for child in module.children() if isinstance(child, nn.ModuleList))
    alike = {len(one) for one in lists if len({type(item) for item in one}) == 1}
    wide = {len(weight) for weight in module.parameters(recurse=False) if weight.ndim >= 3}
    return (alike | wide) - {0, 1}


def modules_of_experts(model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Path, module and number of experts of each that says how many its own weights hold."""
    for path, module in model.named_modules():
        number = getattr(module, "num_experts", None)
        if type(number) is not int or number < 2:
            continue
        if any(_holds(weight, number) for weight in module.parameters(recurse=False)):
            yield path, module, number


def _holds(weight: nn.Parameter, num_experts: int) -> bool:
    return weight.ndim >= 3 and len(weight) == num_experts


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
    for path, module, num_experts in modules_of_experts(model):
        if module in compiled:
            continue
        for attribute, weight in module.named_parameters(recurse=False):
            is_alone = num_names[id(weight)] == 1
            if _holds(weight, num_experts) and is_alone and _is_plain(weight):
                yield f"{path}.{attribute}" if path else attribute, weight


def _is_plain(weight: nn.Parameter) -> bool:
    """Whether nobody looks at the weight, and it lies in memory as its experts would."""
    is_watched = weight._backward_hooks or weight._post_accumulate_grad_hooks  # noqa: SLF001
    is_large = weight[0].nbytes >= MIN_EXPERT_BYTES
    is_dense = strides_of(weight) is None and weight.is_floating_point()
    return is_large and is_dense and not is_watched
