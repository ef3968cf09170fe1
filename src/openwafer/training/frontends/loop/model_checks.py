"""Models and uses of them that cannot stream, refused where they are met."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.update_rules.optimizers import parameters_of
from openwafer.training.stream.execute.attachment import COMPILED_CALL
from openwafer.training.torch_private import (
    active_ddp_module,
    functorch_interpreter,
    is_of_compiler,
)

COMPILE_LAYERS = "compile the layers by themselves: for layer in model.layers: layer.compile()"


def check_streamable(model: nn.Module) -> None:
    """Refuse a model whose forward or whose weights are out of Python's reach.

    Raises:
        OpenwaferError: ``compiled-whole``, ``layer-scripted``, ``weight-uninitialised``,
            ``weight-without-values``, ``layer-dispatched``.
    """
    if is_of_compiler(model) or model.__dict__.get(COMPILED_CALL) is not None:
        raise compiled_whole(model)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise error(
                "layer-scripted",
                f"{path or 'the model'} is scripted, and weights cannot come and go in a program "
                "that is not Python",
                help="leave torch.jit.script out; " + COMPILE_LAYERS,
            )
        if "_hf_hook" in vars(module):
            raise error(
                "layer-dispatched",
                f"{path or 'the model'} has a hook of accelerate that moves its weights between "
                "devices, as device_map asks for",
                help="load the model without device_map, or call "
                "accelerate.hooks.remove_hook_from_module(model, recurse=True)",
            )
    _check_weights(model)


def _check_weights(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise error(
                "weight-uninitialised",
                f"{name!r} has no shape before the first forward, and weights are laid out by them",
                help="call the model once under torch.no_grad() before stream_weights",
            )
        if parameter.is_meta:
            raise error(
                "weight-without-values",
                f"{name!r} is on the meta device and has no values that a store could take",
                help="build or load the model with its weights; one that memory cannot hold inside "
                "openwafer.deferred_weights(folder)",
            )


def compiled_whole(model: nn.Module) -> OpenwaferError:
    """The error of a compilation that reaches over several layers."""
    return error(
        "compiled-whole",
        f"this {type(model).__name__} is compiled as a whole, and its weights come and go between "
        "its layers",
        help=COMPILE_LAYERS,
    )


def refuse_tracing(model: nn.Module, _args: object) -> None:
    """A hook before the forward of a model that streams: who traces it meets the refusal."""
    if torch.compiler.is_compiling():
        _refuse(model)
    check_transforms()


def is_streamed(model: nn.Module) -> bool:
    """Whether the model has that hook."""
    return refuse_tracing in model._forward_pre_hooks.values()  # noqa: SLF001 - no public name


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _refuse(model: nn.Module) -> None:
    raise compiled_whole(model)


def check_gradient_hooks(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse hooks that wait for a whole gradient in its parameter.

    Raises:
        OpenwaferError: ``streamed-gradient-hook``.
    """
    for name, parameter in parameters.items():
        if parameter._post_accumulate_grad_hooks:  # noqa: SLF001 - no public name
            raise gradient_hook(name)


def gradient_hook(name: str) -> OpenwaferError:
    """The error of a hook that would find a part of a gradient, or none."""
    return error(
        "streamed-gradient-hook",
        f"a hook of register_post_accumulate_grad_hook waits for the gradient of {name!r}, which "
        "goes to the parameter store layer by layer",
        help="use parameter.register_hook, which sees each gradient, and update after backward",
    )


def check_unwrapped() -> None:
    """Refuse a forward of several systems inside a wrapper that has several ranks of its own.

    Raises:
        OpenwaferError: ``systems-wrapped``.
    """
    if active_ddp_module() is not None:
        raise error(
            "systems-wrapped",
            "the model runs inside DistributedDataParallel, which would add the gradients of all "
            "systems by itself",
            help="leave the wrapper out; with accelerate and its Trainer, call "
            "accelerator.prepare_model(model, evaluation_mode=True) first",
        )


def check_apart(model: nn.Module, weights: nn.Module) -> None:
    """Refuse weights of a model that another one streams.

    Args:
        weights: the model or a part of it.

    Raises:
        OpenwaferError: ``weights-streamed-twice``.
    """
    streamed = [parameter for parameter in weights.parameters() if "home" in vars(parameter)]
    for name, parameter in model.named_parameters():
        if any(parameter is one for one in streamed):
            raise error(
                "weights-streamed-twice",
                f"{name!r} of this {type(model).__name__} is streamed with another model already, "
                "and a weight has one store",
                help="give stream_weights one module that has both models, with all optimizers",
            )


class _PartCheck:
    """A hook that refuses forwards of a model's parts until the model itself is called."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._paths = {id(module): path for path, module in model.named_modules() if path}

    def __call__(self, module: nn.Module, _args: object) -> None:
        # A copy of the model has the hook, too.
        if torch.is_grad_enabled() and id(module) in self._paths:
            check_apart(self._model, module)
            path = self._paths[id(module)]
            raise in_parts(self._model, f"its part {path!r} is called by itself")

    def __deepcopy__(self, _memo: object) -> Self:
        return self


def refuse_parts(model: nn.Module) -> None:
    """Refuse forwards with gradients of the model's parts, until :func:`let_parts_run`."""
    check = _PartCheck(model)
    for module in model.modules():
        if module is not model and next(module.parameters(), None) is not None:
            module.register_forward_pre_hook(check)


def let_parts_run(model: nn.Module) -> None:
    """The model is called: its parts may run, also those that are another model's, too."""
    for module in model.modules():
        hooks = module._forward_pre_hooks  # noqa: SLF001 - no public name
        for number in [number for number, hook in hooks.items() if isinstance(hook, _PartCheck)]:
            del hooks[number]


def in_parts(model: nn.Module, what: str) -> OpenwaferError:
    """The error of a loop that trains a model which it never calls."""
    return error(
        "model-in-parts",
        f"this {type(model).__name__} has not been called as a whole, by which device_memory is "
        f"planned, and {what}",
        help="give stream_weights a module whose forward calls the parts, or stream each part "
        "with an optimizer of its own; once the model has been called, so may its parts be",
    )


def check_transforms() -> None:
    """Refuse a forward inside a transform of torch.func.

    Raises:
        OpenwaferError: ``streamed-under-transform``.
    """
    interpreter = functorch_interpreter()
    if interpreter is not None:
        raise error(
            "streamed-under-transform",
            f"the forward runs inside torch.func's {interpreter.key().name.lower()}, which cannot "
            "see weights come and go",
            help="give a batch a dim of its own and differentiate with torch.autograd.grad, or "
            "call streamed.close()",
        )


def check_in_place(
    parameters: Iterable[tuple[str, nn.Parameter]], kind: type[nn.Parameter]
) -> None:
    """Refuse a parameter that is no longer what was released.

    Raises:
        OpenwaferError: ``parameter-swapped``.
    """
    for name, parameter in parameters:
        if type(parameter) is not kind:
            raise error(
                "parameter-swapped",
                f"another tensor was put in the place of {name!r}, whose weights are in the "
                "parameter store",
                help="copy into it with parameter.data.copy_(value)",
            )


def apply_in_place(
    model: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> Any:
    """``model.to(...)`` and the like of a model that is streamed.

    Raises:
        OpenwaferError: ``streamed-model-moved``, before anything has changed.
    """
    for dtype, device in {(p.dtype, p.device) for p in model.parameters()}:
        made = function(torch.empty(0, dtype=dtype, device=device))
        if (made.dtype, made.device) != (dtype, device):
            raise error(
                "streamed-model-moved",
                f"this {type(model).__name__} is streamed with {dtype} weights on {device}, "
                f"and is to have {made.dtype} ones on {made.device}",
                help="call streamed.close(), change the model, and stream it anew",
            )
    return type(model)._apply(model, function, recurse)  # noqa: SLF001 - what it stands in for


def refuse_resizing(module: nn.Module, *_: object, **__: object) -> NoReturn:
    """``resize_token_embeddings`` of a model of transformers that is streamed."""
    raise error(
        "streamed-model-resized",
        f"resize_token_embeddings of this {type(module).__name__} would put other parameters in "
        "the place of those whose weights are in the parameter store",
        help="call it before stream_weights, or streamed.close() first and stream the model anew "
        "with an optimizer over the new parameters",
    )


def check_frozen(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse a forward where one of these requires a gradient now.

    Raises:
        OpenwaferError: ``parameter-unfrozen``.
    """
    for name, parameter in parameters:
        if parameter.requires_grad:
            raise error(
                "parameter-unfrozen",
                f"{name!r} requires a gradient now and did not when the run was planned, so "
                "that there is no room for one",
                help="call streamed.close(), unfreeze, and stream the model anew",
            )


def copied(model: nn.Module) -> OpenwaferError:
    """The error of who copies or pickles a model that is streamed."""
    return error(
        "streamed-model-copied",
        f"this {type(model).__name__} is streamed, and the store of its weights cannot be copied "
        "or pickled with it",
        help="copy the model before stream_weights; save model.state_dict()",
    )


def optimizers_of(given: Optimizer | Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    """One optimizer or several, without what accelerate puts around each.

    Raises:
        OpenwaferError: ``optimizer-none``.
    """
    return tuple(map(_bare, given if isinstance(given, list | tuple) else [given]))


def _bare(given: object) -> Optimizer:
    if not isinstance(given, Optimizer):
        raise error(
            "optimizer-none",
            f"stream_weights takes an optimizer of torch or a sequence of them, and got {given!r}",
            help="build one over model.parameters(), such as torch.optim.AdamW",
        )
    # Its step calls that of the one inside, unless a scaler leaves it out.
    is_wrapper = type(given).__module__.partition(".")[0] == "accelerate"
    return _bare(vars(given)["optimizer"]) if is_wrapper else given


def refuse_group(optimizer: Optimizer, param_group: Mapping[str, Any]) -> NoReturn:
    added, held = param_group["params"], len(parameters_of(optimizer))
    num_added = 1 if isinstance(added, torch.Tensor) else len(list(added))
    raise error(
        "optimizer-groups-changed",
        f"with a group more the optimizer has {held + num_added} parameters now and had {held} "
        "when the parameter store was laid out for it",
        help="call streamed.close(), add them, and stream the model anew",
    )


def refuse_assignment(
    _module: nn.Module,
    _state: object,
    _prefix: str,
    metadata: Mapping[str, object],
    *_: object,
) -> None:
    if metadata.get("assign_to_params_buffers"):
        raise error(
            "weights-assigned",
            "load_state_dict(assign=True) would put other parameters in the place of those whose "
            "weights are streamed",
            help="load with assign=False, which copies into the parameter store",
        )
