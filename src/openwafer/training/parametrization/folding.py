"""Multipliers of outputs in the weights of a finished model, for whoever loads it elsewhere."""

import copy
from collections.abc import Mapping

import torch
from torch import nn

from openwafer.training.parametrization.observation import Observation
from openwafer.training.parametrization.roles import Kind, Role


def fold(
    model: nn.Module,
    roles: Mapping[str, Role],
    multipliers: Mapping[str, float],
    seen: Observation,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """What multiplies parameters, so that a model without the multipliers computes the same.

    A head of its own is multiplied itself. A head that is a table of embeddings as well leaves it
    to the norm before it, where nobody else reads that norm.

    Returns:
        Factors by name of a parameter, and the modules for which there are none.
    """
    factors: dict[str, float] = {}
    unfolded = []
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    for path, multiplier in multipliers.items():
        name = name_of[model.get_submodule(path).get_parameter("weight")]
        norm = seen.sources.get(path)
        if roles[name].kind is Kind.OUTPUT:
            factors[name] = multiplier
        elif norm is not None and _is_proportional(model.get_submodule(norm)):
            weights = model.get_submodule(norm).named_parameters()
            factors |= {f"{norm}.{part}": multiplier for part, _ in weights}
        else:
            unfolded.append(path)
    return factors, tuple(unfolded)


@torch.no_grad()
def _is_proportional(norm: nn.Module) -> bool:
    """Whether a norm of half the weights puts out half as much: some add 1 to their weights."""
    halved = copy.deepcopy(norm)
    size = next(norm.parameters()).numel()
    for parameter in halved.parameters():
        parameter.mul_(0.5)
    inputs = torch.linspace(-1, 1, size).reshape(1, 1, size)
    return torch.allclose(halved(inputs), norm(inputs) / 2)
