"""Pruning by inputs, said plainly: the whole model is run again for each layer."""

import copy
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from openwafer.training.sparsity.masks.one_shot import sparsegpt


def hidden_weights(model: nn.Module) -> dict[str, list[str]]:
    """Weights of linear maps by the number of their layer."""
    found: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        number = re.search(r"\.(\d+)\.", name)
        if number is not None and isinstance(module, nn.Linear | Conv1D):
            found.setdefault(number[1], []).append(f"{name}.weight")
    return found


@torch.no_grad()
def plainly_pruned(
    model: nn.Module, samples: Sequence[Tensor], method: str, sparsity: float
) -> Mapping[str, Tensor]:
    """Weights behind each layer's pruning, which sees the outputs of the pruned layers before."""
    model = copy.deepcopy(model).eval()
    for names in hidden_weights(model).values():
        inputs = _inputs_of(model, names, samples)
        for name in names:
            module = model.get_submodule(name.removesuffix(".weight"))
            weight = model.get_parameter(name)
            by_output = weight.T if isinstance(module, Conv1D) else weight
            if method == "wanda":
                pruned = _plain_wanda(by_output, inputs[name], sparsity)
            else:
                products = inputs[name].T @ inputs[name]
                pruned = sparsegpt(by_output, products, sparsity, name).weights
            by_output.copy_(pruned)
    return dict(model.state_dict())


def _inputs_of(
    model: nn.Module, names: Sequence[str], samples: Sequence[Tensor]
) -> dict[str, Tensor]:
    """All inputs [tokens, features] of modules, in fp64."""
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    hooks = [
        model.get_submodule(name.removesuffix(".weight")).register_forward_hook(
            lambda _module, args, _out, name=name: seen[name].append(args[0].double().flatten(0, 1))
        )
        for name in names
    ]
    for sample in samples:
        model(input_ids=sample.reshape(1, -1))
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(rows) for name, rows in seen.items()}


def _plain_wanda(weight: Tensor, inputs: Tensor, sparsity: float) -> Tensor:
    norms = inputs.norm(dim=0)
    rows, columns = weight.shape
    pruned = torch.zeros_like(weight)
    num_kept = 0
    for row in range(rows):
        number = int((1 - sparsity) * (row + 1) * columns + 1e-9) - num_kept
        order = sorted(range(columns), key=lambda c: -float(weight[row, c].abs() * norms[c]))
        pruned[row, order[:number]] = weight[row, order[:number]]
        num_kept += number
    return pruned
