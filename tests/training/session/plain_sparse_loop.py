"""The plain PyTorch loop of a sparse run: dense weights, multiplied by masks of plain Python."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from openwafer.training.data import prepare
from openwafer.training.models import build
from openwafer.training.models.build import with_vocab_size
from openwafer.training.session import RunConfig
from openwafer.training.session.building import tokenizer_of
from tests.training.session.tiny_runs import plain_step
from tests.training.sparsity.plain_masks import (
    PlainUpdate,
    first_of_each_group,
    group_size,
    plain_count,
    plain_draws,
    plain_units,
    plain_update,
    to_tensor,
)

DROPPED = 0.3


@dataclass(frozen=True)
class PlainSparsity:
    """What the YAML key says, in plain Python.

    Attributes:
        sparsity: by step, number 0 the initial one.
        updates: training steps behind which masks are updated.
        rewind_step: to whose weights a round of IMP goes back.
    """

    algorithm: str
    sparsity: Mapping[int, float]
    updates: frozenset[int] = frozenset()
    rewind_step: int | None = None

    def at(self, step: int) -> float:
        return self.sparsity[max(known for known in self.sparsity if known <= step)]


@dataclass
class MaskedModel:
    """A dense model whose matrices are masked that are named so."""

    model: nn.Module
    sparsity: PlainSparsity
    seed: int
    named: str = r"layers\."
    masks: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, weight in self.hidden.items():
            units = plain_units("1", tuple(weight.shape))
            draws = plain_draws(units, self.seed, 0, name)
            order = sorted(draws, key=lambda unit: (-draws[unit], unit))
            number = plain_count(self.sparsity.at(0), group_size(units))
            kept = first_of_each_group(order, number)
            self._keep(name, to_tensor(kept, units, tuple(weight.shape)))
            weight.register_hook(partial(self._masked, name))

    @property
    def hidden(self) -> dict[str, nn.Parameter]:
        named = self.model.named_parameters()
        return {name: p for name, p in named if p.ndim == 2 and re.match(self.named, name)}

    def _masked(self, name: str, gradient: Tensor) -> Tensor:
        self.gradients[name] = self.gradients.get(name, 0) + gradient
        return gradient * self.masks[name]

    def _keep(self, name: str, mask: Tensor) -> None:
        self.masks[name] = mask
        with torch.no_grad():
            self.hidden[name].mul_(mask)

    def keep(self, step: int) -> None:
        """Copy the weights behind that step, if pruning goes back to it."""
        if step == self.sparsity.rewind_step:
            self.kept = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def _go_back(self, optimizer: torch.optim.Optimizer) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(self.kept[name] * self.masks.get(name, 1))
        optimizer.state.clear()

    def update(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Behind the `step`-th training step, from 1."""
        self.keep(step)
        for name, weight in self.hidden.items() if step in self.sparsity.updates else ():
            units = plain_units("1", tuple(weight.shape))
            kept = {unit for unit, [at] in units.items() if self.masks[name].flatten()[at]}
            draws = plain_draws(units, self.seed, step, name)
            given = PlainUpdate(
                units, kept, weight, self.gradients[name], self.sparsity.at(step), DROPPED, draws
            )
            new = plain_update(self.sparsity.algorithm, given)
            self._keep(name, to_tensor(new, units, tuple(weight.shape)))
            for state in optimizer.state[weight].values():
                if state.shape == weight.shape:
                    state.mul_(self.masks[name])
        if self.kept and step in self.sparsity.updates and step in self.sparsity.sparsity:
            self._go_back(optimizer)
        self.gradients.clear()


def plain_sparse_loop(
    config: RunConfig, sparsity: PlainSparsity, named: str = r"layers\."
) -> Mapping[str, Tensor]:
    """Parameters after the run, dense; sparse are the matrices that are named so."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    assert config.data.folder is not None
    dataset = prepare(preparation, config.data.folder)
    model = build(with_vocab_size(config.model, dataset.tokenizer.vocab_size), config.seed)
    masked = MaskedModel(model, sparsity, config.seed, named)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, fused=False)
    schedule, scaler = (
        config.schedule.build(config.steps),
        torch.amp.GradScaler("cpu", enabled=False),
    )
    masked.keep(0)
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.optimizer.learning_rate * schedule(step)
        batches = dataset.micro_batches(step, config.batch.num_micro_batches)
        plain_step(model, optimizer, batches, config, step, scaler)
        masked.update(step + 1, optimizer)
    return {name: p.detach() for name, p in model.named_parameters()}
