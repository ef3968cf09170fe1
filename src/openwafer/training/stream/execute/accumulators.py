"""Autograd's accumulators: the nodes that add a gradient to a parameter.

A parameter has one accumulator for all graphs that are alive, so a backward from several losses
sums their gradients before anybody sees them. torch drops a parameter's accumulator when its data
changes type, and makes another at the next use. So each micro-batch gets one of its own, without a
copy of the weights and without another parameter in the model.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.autograd.graph import Node, get_gradient_edge

from openwafer.training.stream.device.weights import OWN_DATA


def renew_accumulators(parameters: Iterable[nn.Parameter]) -> None:
    """Let what is computed from now on have its own gradients of these parameters."""
    for parameter in parameters:
        data = OWN_DATA.__get__(parameter)
        other = torch.float32 if data.dtype is torch.float64 else torch.float64
        OWN_DATA.__set__(parameter, torch.empty(0, dtype=other, device=data.device))
        OWN_DATA.__set__(parameter, data)


def before_accumulation(parameter: nn.Parameter, function: Callable[[], None]) -> Node:
    """Call ``function`` before the present accumulator of a parameter adds a gradient.

    Returns:
        The accumulator, which lives while somebody holds it or a graph uses it.
    """
    node = get_gradient_edge(parameter).node
    node.register_prehook(lambda _: function())
    return node
