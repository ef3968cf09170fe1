"""A module's own code over the rows and products of others, against the module itself."""

import copy
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.exchange import Asked, RowCall
from openwafer.training.store.layout import array_named, slice_name
from openwafer.training.stream.forms.expert_modules import (
    DOWN,
    GATE,
    UP,
    expert_modules,
    has_bare_rows,
    why_fetched,
)
from openwafer.training.stream.forms.weight_form import ByExpert, Operator
from openwafer.training.stream.replicas.expert_link import ExpertCall, OwnedExperts

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_local_experts": 4}


def make_module() -> MixtralExperts:
    torch.manual_seed(1)
    made = MixtralExperts(MixtralConfig(**SIZES, experts_implementation="grouped_mm"))
    for weight in made.parameters():
        torch.nn.init.normal_(weight)
    return made


MASKS_ROWS = pytest.mark.skipif(
    not has_bare_rows(make_module()), reason="transformers before 5.18 masks rows"
)


def owner_of(module: MixtralExperts) -> OwnedExperts:
    [known] = expert_modules(module, [UP, DOWN]).values()
    experts = OwnedExperts([known], [range(4)], 1, nullcontext)
    experts.weights = {
        slice_name(name, index): part
        for name, weight in module.named_parameters()
        for index, part in enumerate(weight.detach())
    }
    return experts


def call_over(module: MixtralExperts, experts: OwnedExperts) -> ExpertCall:
    def ask(
        _path: str, operator: Operator, rows: torch.Tensor, sizes: Sequence[int]
    ) -> tuple[torch.Tensor, RowCall]:
        call = RowCall(Asked.FORWARD, operator=operator.number, sizes=tuple(sizes))
        return experts.answer(0, call, rows), call

    def ask_back(call: RowCall, gradients: torch.Tensor) -> torch.Tensor:
        return experts.answer(0, replace(call, asked=Asked.BACKWARD), gradients)

    forms = {name: ByExpert(name, module.get_parameter(name)) for name in (UP, DOWN)}
    return ExpertCall(forms, ask, ask_back)


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, the experts of each, and their weights."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(12, 16, generator=generator).requires_grad_()
    scores = torch.rand(12, 4, generator=generator)
    weights, experts = scores.topk(2)
    return tokens, experts, weights.requires_grad_()


def trained(module: MixtralExperts) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The output of the example, and gradients of tokens, weights and parameters that have one."""
    tokens, experts, weights = example()
    out = module(tokens, experts, weights)
    out.sin().sum().backward()
    leaves = [tokens, weights, *module.parameters()]
    return out, [leaf.grad for leaf in leaves if leaf.grad is not None]


@MASKS_ROWS
def test_outputs_and_gradients_are_those_of_the_module() -> None:
    module = make_module()
    expected, (of_tokens, of_weights, *wholes) = trained(copy.deepcopy(module))
    experts = owner_of(module)
    with ExitStack() as undo:
        call_over(module, experts).stand_in(module, undo)
        out, gradients = trained(module)
    assert torch.equal(out, expected)
    assert all(map(torch.equal, gradients, [of_tokens, of_weights]))
    experts.end()
    by_name = dict(zip(dict(module.named_parameters()), wholes, strict=True))
    for name, part in experts.ready.get().by_slice.items():
        assert part is not None
        assert torch.equal(part, array_named(by_name, name))


class Doubling(MixtralExperts):  # type: ignore[misc]
    """Does more between the two products than other modules."""

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        gate = getattr(self, GATE)
        setattr(self, GATE, lambda rows: 2 * gate(rows))
        out: torch.Tensor = super().forward(*args)
        return out


@MASKS_ROWS
def test_code_that_changes_rows_between_the_products_is_refused() -> None:
    module = make_module()
    call = call_over(module, owner_of(module))
    module.__class__ = Doubling
    told = r"\[experts-elsewhere\]: the code of '' does more to rows between .* and down_proj"
    with ExitStack() as undo:
        call.stand_in(module, undo)
        with pytest.raises(OpenwaferError, match=told):
            module(*example())


def test_code_that_takes_one_expert_is_refused() -> None:
    module = make_module()
    with ExitStack() as undo:
        call_over(module, owner_of(module)).stand_in(module, undo)
        with pytest.raises(OpenwaferError, match=r"takes 'down_proj\.\.1' from its weight"):
            module.down_proj[1]


def test_a_library_that_masks_rows_has_its_experts_fetched() -> None:
    module = make_module()
    vars(module).pop("_is_expert_parallel", None)
    told = "transformers before 5.18 masks the rows between its products"
    assert (
        why_fetched(nn.ModuleDict({"moe": module}), [f"moe.{UP}", f"moe.{DOWN}"], 2)
        == f"moe: {told}"
    )
