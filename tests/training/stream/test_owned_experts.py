"""What an owner makes of the rows of several ranks, against the module's own code."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from openwafer.training.collectives.exchange import Asked, RowCall
from openwafer.training.store.layout import array_named, slice_name
from openwafer.training.stream.forms.expert_modules import DOWN, UP, expert_modules
from openwafer.training.stream.forms.weight_form import Operator
from openwafer.training.stream.replicas.expert_link import OwnedExperts

NUM_EXPERTS = 3
# Rows of each expert in each micro-batch; ranks have two and one.
SIZES = ((4, 0, 3), (1, 0, 2), (2, 5, 0))
OF_RANKS = ((0, 0), (0, 1), (1, 0))
GROUPED = Operator("grouped_mm", is_transposed=True).number


@pytest.fixture
def module() -> MixtralExperts:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_local_experts": NUM_EXPERTS}
    config = MixtralConfig(**sizes, experts_implementation="grouped_mm")
    made = MixtralExperts(config)
    for weight in made.parameters():
        torch.nn.init.normal_(weight)
    return made


def rows_of(seed: int, sizes: Sequence[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(sizes), 16, generator=generator)


def plain(module: MixtralExperts) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Products and gradients of rows, micro-batch by micro-batch; those of weights are added up."""
    products, gradients = [], []
    for number, sizes in enumerate(SIZES):
        rows = rows_of(number, sizes).requires_grad_()
        experts = torch.arange(NUM_EXPERTS).repeat_interleave(torch.tensor(sizes))[:, None]
        out = module(rows, experts, torch.ones(len(rows), 1))
        out.backward(rows_of(10 + number, sizes))
        assert rows.grad is not None
        products.append(out.detach())
        gradients.append(rows.grad)
    return products, gradients


def owner(module: MixtralExperts) -> OwnedExperts:
    """Of all experts, for two ranks."""
    [known] = expert_modules(module, [UP, DOWN]).values()
    experts = OwnedExperts([known], [range(NUM_EXPERTS)], 2, nullcontext)
    experts.weights = {
        slice_name(name, index): part
        for name, weight in module.named_parameters()
        for index, part in enumerate(weight.detach())
    }
    return experts


def call(asked: Asked, number: int) -> RowCall:
    return RowCall(asked, 0, number, OF_RANKS[number][1], GROUPED, SIZES[number])


def check(experts: OwnedExperts, asked: Asked, number: int, expected: torch.Tensor) -> None:
    """An owner answers a rank as the module does."""
    seed = number if asked is Asked.FORWARD else 10 + number
    rows = rows_of(seed, SIZES[number])
    assert torch.equal(experts.answer(OF_RANKS[number][0], call(asked, number), rows), expected)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (2, 0, 1)])
def test_sums_are_in_the_order_of_micro_batches_whenever_they_come(
    module: MixtralExperts, order: Sequence[int]
) -> None:
    products, gradients = plain(whole := copy.deepcopy(module))
    experts = owner(module)
    for number in order:
        check(experts, Asked.FORWARD, number, products[number])
    for number in order:
        check(experts, Asked.BACKWARD, number, gradients[number])
    experts.end()
    for name, gradient in experts.ready.get().by_slice.items():
        found = array_named(
            {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}, name
        )
        assert gradient is not None
        assert torch.equal(gradient, found)
        assert torch.equal(gradient.signbit(), found.signbit())


def test_gradients_are_ready_when_all_ranks_have_left(module: MixtralExperts) -> None:
    experts = owner(module)
    for asked in (Asked.FORWARD, Asked.BACKWARD):
        experts.answer(0, call(asked, 0), rows_of(0, SIZES[0]))
    experts.answer(1, RowCall(Asked.LEAVE), torch.empty(0))
    assert experts.ready.empty()
    experts.answer(0, RowCall(Asked.LEAVE), torch.empty(0))
    assert experts.ready.get().by_slice[slice_name(UP, 1)] is None


def test_a_module_without_a_backward_has_no_gradients(module: MixtralExperts) -> None:
    experts = owner(module)
    experts.answer(0, call(Asked.FORWARD, 0), rows_of(0, SIZES[0]))
    experts.answer(0, RowCall(Asked.LEAVE), torch.empty(0))
    experts.answer(1, RowCall(Asked.LEAVE), torch.empty(0))
    assert not experts.ready.get().by_slice


def test_a_layer_that_runs_again_makes_the_same_products(module: MixtralExperts) -> None:
    experts, rows = owner(module), rows_of(0, SIZES[0])
    first = experts.answer(0, call(Asked.FORWARD, 0), rows)
    assert torch.equal(experts.answer(0, call(Asked.AGAIN, 0), rows), first)
