"""Models of Keras 3 on torch, as trees of modules in which each layer has its own weights."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from torch import nn
from torch.optim import Optimizer

KERAS: Final = "keras"


def is_of_keras(kind: type) -> bool:
    """Whether objects of a class are models or layers of Keras."""
    return any(base.__module__.partition(".")[0] == KERAS for base in kind.__mro__)


def hang_layers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Make the layers of Keras's models and layers submodules of them, if there are any.

    Keras's models are modules whose weights lie in one dictionary at the top, ``_torch_params``,
    and their layers are in a list of Keras's own, ``_layers``. Neither has another name that is
    public for all layers. Keras reads a variable's parameter from the variable, so it computes,
    saves and loads as before.

    What the calls of a layer write to, such as moving averages, becomes a buffer, as it is in
    torch. It leaves the optimizers, which find no gradient of it.
    """
    hung: set[int] = set()
    for module in _of_keras(model):
        _hang(module, hung)
    written = {id(one) for layer in _of_keras(model) for one in _make_buffers(layer)}
    for optimizer in optimizers if written else ():
        for group in optimizer.param_groups:
            group["params"] = [one for one in group["params"] if id(one) not in written]


def _of_keras(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if is_of_keras(type(module))]


def _hang(holder: Any, hung: set[int]) -> None:
    if id(holder) in hung:
        return
    hung.add(id(holder))
    # The property makes the dictionary where there is none yet.
    weights = holder.torch_params
    for child in holder.children():
        if is_of_keras(type(child)):
            _hang(child, hung)
    for layer in holder._layers:  # noqa: SLF001 - see above
        _hang(layer, hung)
        for variable in layer.variables:
            if variable.path in weights:
                del weights[variable.path]
        if layer.variables and not any(layer is child for child in holder.children()):
            nn.Module.add_module(holder, _free_name(holder, _stem_of(layer)), layer)
    # A path has names that Keras counts in the process.
    named = nn.ParameterDict()
    for path, weight in weights.items():
        named[_free_name(named, path.rpartition("/")[2])] = weight
    nn.Module.__setattr__(holder, "_torch_params", named)


def _stem_of(layer: Any) -> str:
    """A layer's name, without the number of one that Keras has given, as ``dense`` of dense_7."""
    name = str(layer.name).replace(".", "_")
    stem, _, number = name.rpartition("_")
    kind = type(layer).__name__.lower()
    return stem if number.isdigit() and stem.replace("_", "") == kind else name


def _free_name(module: nn.Module, stem: str) -> str:
    number, name = 0, stem
    while hasattr(module, name):
        number += 1
        name = f"{stem}_{number}"
    return name


def _make_buffers(layer: Any) -> Iterator[nn.Parameter]:
    """Make buffers of what a layer's calls write to, and yield what it was before."""
    seeds = [generator.state for generator in layer._seed_generators]  # noqa: SLF001 - see above
    for variable in (*layer._non_trainable_variables, *seeds):  # noqa: SLF001
        before = variable.value
        if isinstance(before, nn.Parameter):
            # Keras takes a parameter as it is, and makes a parameter of all else.
            variable._value = before.detach()  # noqa: SLF001
            for path, weight in list(layer.torch_params.items()):
                if weight is before:
                    del layer.torch_params[path]
            # The variable itself is an attribute of that name.
            name = _free_name(layer, f"{variable.name}_value".replace(".", "_"))
            nn.Module.register_buffer(layer, name, variable.value)
            yield before
