"""Ties a model to what runs it: stand-ins for the layers' forwards, hooks on the parameters."""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol
from weakref import WeakMethod

import torch
from torch import nn

from openwafer.training.stream.execute.compiled_layers import FORWARD, call_of
from openwafer.training.stream.execute.gradient_watchers import call_weakly
from openwafer.training.stream.execute.stand_ins import Function, stand_in
from openwafer.training.stream.layers import Layer, Partition


class Runner(Protocol):
    """What is called in the place of the model's own forwards, and when gradients arrive."""

    def run_layer(self, layer: Layer, function: Function, args: Any, kwargs: Any) -> Any:
        """Run one call of a layer."""

    def run_root(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Run the model's own forward."""

    def run_part(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Run the forward of a module with weights that is no layer and in none."""

    def expect_gradient(self, gradient: torch.Tensor) -> None:
        """A gradient is about to be added to a parameter."""

    def take_gradient(self, name: str, parameter: torch.Tensor) -> None:
        """A gradient has been added to a parameter."""


def attach(
    runner: Runner, model: nn.Module, split: Partition, parameters: Mapping[str, nn.Parameter]
) -> ExitStack:
    """Let a runner have the model's calls and gradients; closing the stack ends that."""
    undo = ExitStack()
    modules = dict(model.named_modules(remove_duplicate=False))
    for layer in split.modules:
        module = modules[layer.name]
        name, function = call_of(module)
        undo.callback(stand_in(module, name, function, partial(runner.run_layer, layer)))
    for part in _parts_beside_layers(model, split, modules):
        run = runner.run_root if part is model else runner.run_part
        undo.callback(stand_in(part, FORWARD, part.forward, run))
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            # Held weakly: a garbage collector does not see what these hooks hold.
            expect = partial(call_weakly, WeakMethod(runner.expect_gradient))
            undo.callback(parameter.register_hook(expect).remove)
            take = partial(call_weakly, WeakMethod(runner.take_gradient), name)
            undo.callback(parameter.register_post_accumulate_grad_hook(take).remove)
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
