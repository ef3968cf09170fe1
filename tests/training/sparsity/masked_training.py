"""A small model trained twice: packed values under the package's masks, and masked dense tensors
under masks of plain Python."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from openwafer.training.sparsity.masks.algorithms import (
    Algorithm,
    MaskUpdate,
    RigL,
    carried,
    is_update,
    updated,
    wants_gradient,
)
from openwafer.training.sparsity.masks.one_shot import InitMethod, initial_mask
from tests.training.sparsity.plain_masks import (
    PlainUpdate,
    Unit,
    falling,
    first_of_each_group,
    group_size,
    plain_count,
    plain_draws,
    plain_units,
    plain_update,
    to_tensor,
    unit_sizes,
)

NUM_STEPS = 30
SEED = 11
RATE, DECAYS = 0.05, (0.9, 0.99)
SHAPES = {"first.weight": (8, 12), "second.weight": (4, 24)}

Weights = dict[str, Tensor]


def initial_weights() -> Weights:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(shape, generator=generator) / math.sqrt(shape[1])
        for name, shape in SHAPES.items()
    }


def gradients(weights: Weights, step: int) -> Weights:
    """Gradients of all weights of a small network, on a batch of `step`."""
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(16, 12, generator=generator)
    labels = torch.randint(0, 4, (16,), generator=generator)
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    hidden = torch.tanh(inputs @ leaves["first.weight"].T)
    logits = torch.cat([hidden, hidden**2, hidden**3], dim=1) @ leaves["second.weight"].T
    F.cross_entropy(logits, labels).backward()
    found = {name: leaf.grad for name, leaf in leaves.items()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def moved(weight: Tensor, states: list[Tensor], gradient: Tensor) -> Tensor:
    """A step of Adam without bias correction, `states` in place."""
    mean, square = states
    mean.mul_(DECAYS[0]).add_(gradient * (1 - DECAYS[0]))
    square.mul_(DECAYS[1]).add_(gradient * gradient * (1 - DECAYS[1]))
    return weight - RATE * mean / (square.sqrt() + 1e-8)


@dataclass
class Packed:
    """Values and states of the kept weights alone, moved as the package says."""

    algorithm: Algorithm
    method: InitMethod
    masks: Weights = field(default_factory=dict)
    values: Weights = field(default_factory=dict)
    states: dict[str, list[Tensor]] = field(default_factory=dict)
    first: Weights = field(default_factory=initial_weights)

    def __post_init__(self) -> None:
        target = self.algorithm.target
        for name, weight in initial_weights().items():
            sparsity = target.sparsity_at(0)
            self.masks[name] = initial_mask(
                self.method, weight, sparsity, name, SEED, target.structure
            )
            self.values[name] = weight[self.masks[name]]
            self.states[name] = [torch.zeros_like(self.values[name]) for _ in range(2)]

    def dense(self) -> Weights:
        found = {}
        for name, mask in self.masks.items():
            found[name] = torch.zeros(SHAPES[name])
            found[name][mask] = self.values[name]
        return found

    def train(self, step: int) -> dict[str, MaskUpdate]:
        """The `step`-th training step, from 1, and the update behind it."""
        whole = gradients(self.dense(), step)
        candidates = {}
        if isinstance(self.algorithm, RigL) and wants_gradient(self.algorithm, step):
            candidates = {
                name: self.algorithm.candidates(step, whole[name], mask)
                for name, mask in self.masks.items()
            }
        for name, mask in self.masks.items():
            self.values[name] = moved(self.values[name], self.states[name], whole[name][mask])
        if not is_update(self.algorithm, step):
            return {}
        weights = self.dense()
        return {
            name: self._take(
                name,
                updated(self.algorithm, step, name, weights[name], mask, candidates.get(name)),
            )
            for name, mask in list(self.masks.items())
        }

    def _take(self, name: str, update: MaskUpdate) -> MaskUpdate:
        before, after = self.masks[name], update.mask
        self.values[name] = carried(self.values[name], before, after)
        self.states[name] = [carried(state, before, after) for state in self.states[name]]
        if update.is_rewound:
            self.values[name] = self.first[name][after]
            self.states[name] = [torch.zeros_like(state) for state in self.states[name]]
        self.masks[name] = after
        return update


@dataclass
class Plain:
    """Dense tensors that are multiplied by masks of plain Python."""

    algorithm: str
    structure: str
    sparsity: Callable[[int], float]
    drop_fraction: Callable[[int], float]
    updates: set[int]
    method: str
    weights: Weights = field(default_factory=initial_weights)
    masks: Weights = field(default_factory=dict)
    kept: dict[str, set[Unit]] = field(default_factory=dict)
    states: Mapping[str, list[Tensor]] = field(
        default_factory=lambda: {n: [torch.zeros(s), torch.zeros(s)] for n, s in SHAPES.items()}
    )

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            units = plain_units(self.structure, SHAPES[name])
            scores: Mapping[Unit, float] = plain_draws(units, SEED, 0, name)
            scores = unit_sizes(units, weight) if self.method == "topk" else scores
            number = plain_count(self.sparsity(0), group_size(units))
            self._keep(name, first_of_each_group(falling(scores), number))

    def train(self, step: int) -> None:
        """The `step`-th training step, from 1, and the update behind it."""
        whole = gradients(self.weights, step)
        for name, mask in self.masks.items():
            masked = whole[name] * mask
            self.weights[name] = moved(self.weights[name], self.states[name], masked) * mask
        for name in self.masks if step in self.updates else ():
            units = plain_units(self.structure, SHAPES[name])
            given = PlainUpdate(
                units,
                self.kept[name],
                self.weights[name],
                whole[name],
                self.sparsity(step),
                self.drop_fraction(step),
                plain_draws(units, SEED, step, name),
            )
            self._keep(name, plain_update(self.algorithm, given))
            if self.algorithm == "imp" and self.sparsity(step) > self.sparsity(step - 1):
                self.weights[name] = initial_weights()[name] * self.masks[name]
                for state in self.states[name]:
                    state.zero_()

    def _keep(self, name: str, kept: set[Unit]) -> None:
        self.kept[name] = kept
        self.masks[name] = to_tensor(kept, plain_units(self.structure, SHAPES[name]), SHAPES[name])
        self.weights[name] = self.weights[name] * self.masks[name]
        for state in self.states[name]:
            state.mul_(self.masks[name])
