"""From a graph and its optimizers to a checkpoint's tensors, and back."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.estimator.checkpoints import Checkpoint, Notes, Read
from openwafer.training.frontends.estimator.train_ops import TrainStep
from openwafer.training.store.update_rules.optimizers import parameters_of

RANDOM = "random_state"
RANDOM_AT_BEGIN = "random_state/begin"
GLOBAL_STEP = "global_step"


def tensors_of(
    names: Mapping[int, str], graph: nn.Module, step: TrainStep
) -> Iterator[tuple[str, Read]]:
    """Names of weights, buffers and states, and what reads them.

    Args:
        names: of parameters, by their identity.
        graph: their owner.
        step: has the states.
    """
    state = graph.state_dict()
    for name in state:
        yield name, partial(itemgetter(name), state)
    for index, optimizer in enumerate(step.optimizers):
        for parameter, entries in _states(optimizer):
            for key, value in entries.items():
                if isinstance(value, torch.Tensor):
                    slot = _slot(names[id(parameter)], key, index)
                    yield slot, partial(_entry, optimizer, parameter, key)


def _slot(name: str, key: str, index: int) -> str:
    return f"{name}/{key}" if index == 0 else f"{name}/{index}/{key}"


def _entry(optimizer: Optimizer, parameter: nn.Parameter, key: str) -> torch.Tensor:
    found: torch.Tensor = optimizer.state[parameter][key]
    return found


def _states(optimizer: Optimizer) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
    for parameter in parameters_of(optimizer):
        if parameter in optimizer.state:
            yield parameter, optimizer.state[parameter]


def notes_of(names: Mapping[int, str], step: TrainStep, num_steps: int, num_batches: int) -> Notes:
    """What a checkpoint has beside tensors."""
    optimizers = tuple(
        {
            "numbers": {
                names[id(parameter)]: {
                    key: value
                    for key, value in entries.items()
                    if not isinstance(value, torch.Tensor)
                }
                for parameter, entries in _states(optimizer)
            },
            "groups": [_options(group) for group in optimizer.param_groups],
        }
        for optimizer in step.optimizers
    )
    schedulers = tuple(scheduler.state_dict() for scheduler in step.schedulers)
    return Notes(num_steps, num_batches, optimizers, schedulers)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def restore_weights(graph: nn.Module, checkpoint: Checkpoint) -> None:
    """Give a graph the weights and buffers of a checkpoint.

    Raises:
        OpenwaferError: ``estimator-checkpoint-missing`` and ``estimator-checkpoint-shape``.
    """
    with torch.no_grad():
        for name, tensor in graph.state_dict(keep_vars=True).items():
            if name not in checkpoint.names:
                raise error(
                    "estimator-checkpoint-missing",
                    f"model_fn has {name!r} of shape {tuple(tensor.shape)}, and {checkpoint.path} "
                    "has nothing of that name",
                    help="let model_fn construct the modules that the checkpoint was written with, "
                    "or name another model_dir",
                )
            saved = checkpoint.read(name)
            if saved.shape != tensor.shape:
                raise error(
                    "estimator-checkpoint-shape",
                    f"{name!r} has the shape {tuple(tensor.shape)} in model_fn, and "
                    f"{tuple(saved.shape)} in {checkpoint.path}",
                    help="give model_fn the sizes that the checkpoint was written with, or name "
                    "another model_dir",
                )
            tensor.copy_(saved)


def restore_step(names: Mapping[int, str], step: TrainStep, checkpoint: Checkpoint) -> None:
    """Give optimizers and schedulers the states of a checkpoint that has as many."""
    notes = checkpoint.notes
    if len(notes.optimizers) != len(step.optimizers):
        raise error(
            "estimator-checkpoint-optimizers",
            f"model_fn has {len(step.optimizers)} optimizers, and {checkpoint.path} the states of "
            f"{len(notes.optimizers)}",
            help="return the optimizers in train_op that the checkpoint was written with",
        )
    for index, (optimizer, saved) in enumerate(zip(step.optimizers, notes.optimizers, strict=True)):
        _restore(names, optimizer, saved, partial(_saved_slots, checkpoint, index))
        if step.schedulers:
            for group, options in zip(optimizer.param_groups, saved["groups"], strict=True):
                group.update(options)
    for scheduler, state in zip(step.schedulers, notes.schedulers, strict=False):
        scheduler.load_state_dict(dict(state))


def _saved_slots(checkpoint: Checkpoint, index: int, name: str) -> dict[str, torch.Tensor]:
    """Tensors of a parameter's states in an optimizer."""
    head = _slot(name, "", index)
    keys = [slot.removeprefix(head) for slot in checkpoint.names if slot.startswith(head)]
    return {key: checkpoint.read(head + key) for key in keys if "/" not in key}


def _restore(
    names: Mapping[int, str],
    optimizer: Optimizer,
    saved: Mapping[str, Any],
    slots_of: Callable[[str], dict[str, torch.Tensor]],
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for index, parameter in enumerate(parameters_of(optimizer)):
        name = names[id(parameter)]
        if name in saved["numbers"]:
            state[index] = {**slots_of(name), **saved["numbers"][name]}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
