"""Ties a model to what runs it: stand-ins for the layers' forwards, hooks on the parameters."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from openwafer.training.stream.execute.arriving_gradients import weakly
from openwafer.training.stream.layers import Layer, Partition

FORWARD: Final = "forward"
# A module on which ``compile()`` was called is called through this attribute.
COMPILED_CALL: Final = "_compiled_call_impl"
Function: TypeAlias = Callable[..., Any]
Run: TypeAlias = Callable[[Function, tuple[Any, ...], Mapping[str, Any]], Any]
"""Calls a function with arguments, and does what else there is to do."""


def stand_in(module: nn.Module, name: str, function: Function, run: Run) -> Callable[[], object]:
    """Let ``run`` have every call that a module makes through its attribute ``name``.

    Args:
        function: what the module computes, which ``run`` is given first.

    Returns:
        What gives the module its own attribute back.
    """
    is_own, own = name in module.__dict__, module.__dict__.get(name)
    setattr(module, name, StandIn(function, run))
    return partial(setattr, module, name, own) if is_own else partial(delattr, module, name)


class StandIn:
    """What a module has in the place of its own function."""

    def __init__(self, function: Function, run: Run) -> None:
        # Whoever asks for the signature gets the function's.
        self.__wrapped__ = function
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self.__wrapped__, args, kwargs)


def call_of(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    """The attribute through which a module is called, and what it computes.

    Who takes the place of the compiled call stands outside of what is compiled, so that the
    compiler sees the layer alone.
    """
    compiled = module.__dict__.get(COMPILED_CALL)
    return (FORWARD, module.forward) if compiled is None else (COMPILED_CALL, compiled)


def attach_calls(
    model: nn.Module,
    split: Partition,
    run_layer: Callable[[Layer, Function, Any, Any], Any],
    run_root: Run,
    run_part: Run,
) -> ExitStack:
    """Have others run what a model calls; closing the stack ends that.

    Args:
        run_layer: runs a call of a layer.
        run_root: runs a call of the model.
        run_part: runs a call of a module with weights that is no layer and in none.
    """
    undo = ExitStack()
    modules = dict(model.named_modules(remove_duplicate=False))
    for layer in split.modules:
        module = modules[layer.name]
        name, function = call_of(module)
        undo.callback(stand_in(module, name, function, partial(run_layer, layer)))
    for part in _parts_beside_layers(model, split, modules):
        run = run_root if part is model else run_part
        undo.callback(stand_in(part, FORWARD, part.forward, run))
    return undo


def attach_hooks(
    parameters: Mapping[str, nn.Parameter],
    expect: Callable[[torch.Tensor], None],
    take: Callable[[str, torch.Tensor], None],
) -> ExitStack:
    """Call methods where gradients arrive; closing the stack ends that.

    Args:
        expect: is given a gradient that is about to be added to a parameter.
        take: is given the name of a parameter, and that, once a gradient has been added to it.
    """
    undo = ExitStack()
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            undo.callback(parameter.register_hook(weakly(expect)).remove)
            taking = partial(weakly(take), name)
            undo.callback(parameter.register_post_accumulate_grad_hook(taking).remove)
    return undo


def _parts_beside_layers(
    model: nn.Module, split: Partition, modules: Mapping[str, nn.Module]
) -> list[nn.Module]:
    """The model, and of its modules those with weights that are no layer and in none."""
    streamed = {inner for layer in split.modules for inner in modules[layer.name].modules()}
    return [
        module
        for module in model.modules()
        if module is model
        or (module not in streamed and next(module.parameters(), None) is not None)
    ]
