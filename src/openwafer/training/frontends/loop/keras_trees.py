"""Models of Keras 3 on torch, as trees of modules in which each layer has its own weights."""

from typing import Any, Final

from torch import nn

KERAS: Final = "keras"


def hang_layers(model: nn.Module) -> None:
    """Make the layers of Keras's models and layers submodules of them, if there are any.

    Keras's models are modules whose weights lie in one dictionary at the top, ``_torch_params``,
    and their layers are in a list of Keras's own, ``_layers``. Neither has another name that is
    public for all layers. Keras reads a variable's parameter from the variable, so it computes,
    saves and loads as before.
    """
    for module in list(model.modules()):
        if _is_of_keras(module):
            _hang(module)


def _is_of_keras(module: nn.Module) -> bool:
    return any(kind.__module__.partition(".")[0] == KERAS for kind in type(module).__mro__)


def _hang(holder: Any) -> None:
    # The property makes the dictionary where there is none yet.
    weights = holder.torch_params
    for layer in holder._layers:  # noqa: SLF001 - see above
        _hang(layer)
        for variable in layer.variables:
            if variable.path in weights:
                del weights[variable.path]
        if layer.variables:
            name = layer.name.replace(".", "_")
            # Layers beside each other may have one name, or that of an attribute.
            while hasattr(holder, name) and holder._modules.get(name) is not layer:  # noqa: SLF001
                name += "_layer"
            nn.Module.add_module(holder, name, layer)
