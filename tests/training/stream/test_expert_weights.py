"""What code may do with a weight whose experts stream one by one, and what keeps it whole."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.update_rules import Lamb
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import checkerboard, some
from tests.training.stream.both_loops import (
    STREAMED,
    Run,
    StreamedRun,
    differing,
    on_tier,
    plan,
    train_plainly,
    train_streamed,
)
from tests.training.stream.small_gpt import adamw

WIDTH, NUM_EXPERTS = 32, 6
EXPERT_BYTES = WIDTH * WIDTH * 4
Use = Callable[["Experts", Tensor], Tensor]


class Experts(nn.Module):
    """All samples go through the experts 1, 3 and 4, in the way that a test gives."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.num_experts = NUM_EXPERTS
        self.weight = nn.Parameter(torch.randn(NUM_EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)
        self.use = use
        self.num_calls = 0
        self.kept: list[Tensor] = []

    def forward(self, x_BD: Tensor) -> Tensor:
        return x_BD + self.use(self, x_BD)


def one_by_one(experts: Experts, x_BD: Tensor) -> Tensor:
    for index in (1, 3, -2):
        x_BD = (x_BD @ experts.weight[index]).tanh()
    return x_BD


def held_together(experts: Experts, x_BD: Tensor) -> Tensor:
    first, second, third = [experts.weight[index] for index in (1, 3, 4)]
    return x_BD @ first @ second @ third


def by_tensor(experts: Experts, x_BD: Tensor) -> Tensor:
    index = torch.tensor([4, 1, 1, 3])
    return torch.bmm(x_BD.unsqueeze(1), experts.weight[index]).squeeze(1)


def used_twice(experts: Experts, x_BD: Tensor) -> Tensor:
    return one_by_one(experts, one_by_one(experts, x_BD))


def counted(experts: Experts, x_BD: Tensor) -> Tensor:
    """What a call leaves to the next one has micro-batches go forward in the plain loop's order."""
    experts.num_calls += 1
    return one_by_one(experts, x_BD) * experts.num_calls


def in_shares(experts: Experts, x_BD: Tensor) -> Tensor:
    return torch.einsum("bd,edf->bf", x_BD, experts.weight).tanh()


def by_slice(experts: Experts, x_BD: Tensor) -> Tensor:
    return x_BD @ experts.weight[1:3].sum(0)


def by_attribute(experts: Experts, x_BD: Tensor) -> Tensor:
    return x_BD @ experts.weight.mT[3]


def run_of(use: Use) -> Run:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(Experts(use), Experts(use))

    def loss_of(model: nn.Module, x_BD: Tensor) -> Tensor:
        loss: Tensor = model(x_BD).square().mean()
        return loss

    def draw(generator: torch.Generator) -> Tensor:
        return torch.randn(4, WIDTH, generator=generator)

    return Run(build, adamw, draw, loss_of, num_steps=3, num_micro_batches=2, clip_norm=0.1)


def streamed_and_plain_differ_in(run: Run) -> list[str]:
    trained = train_streamed(run, plan(run, STREAMED))
    parameters = trained.parameters()
    trained.close()
    return differing(parameters, train_plainly(run))


@pytest.mark.parametrize(
    "use",
    some([one_by_one, held_together, by_tensor, used_twice, counted], held_together, used_twice),
)
def test_experts_are_taken_one_by_one(use: Use) -> None:
    run = run_of(use)
    assert plan(run, STREAMED).plan.split.sliced == {"0.weight", "1.weight"}
    assert streamed_and_plain_differ_in(run) == []


@pytest.mark.parametrize(
    ("use", "clip_norm", "num_together"),
    checkerboard(
        {use.__name__: use for use in (held_together, by_tensor)},
        {"on push": None, "on fetch": 0.1},
        (1, NUM_EXPERTS),
        one_in=4,
    ),
)
def test_experts_on_disk_learn_the_same(
    use: Use, clip_norm: float | None, num_together: int, tmp_path: Path
) -> None:
    """Also in room for one, where the others are still held by the code that took them."""
    run = replace(run_of(use), clip_norm=clip_norm)
    planned = on_tier(plan(run, STREAMED), StoreTier.DISK, host_memory_bytes=32 << 10)
    capacity_bytes = num_together * EXPERT_BYTES
    planned = replace(planned, plan=replace(planned.plan, nested_capacity_bytes=capacity_bytes))
    trained = train_streamed(run, planned, folder=tmp_path)
    parameters = trained.parameters()
    trained.close()
    assert differing(parameters, train_plainly(run)) == []


@pytest.mark.parametrize("use", some([in_shares, by_slice, by_attribute], in_shares, by_slice))
def test_a_weight_that_is_used_otherwise_stays_whole(use: Use) -> None:
    run = run_of(use)
    assert not plan(run, STREAMED).plan.split.sliced
    assert streamed_and_plain_differ_in(run) == []


def kept_beyond(experts: Experts, x_BD: Tensor) -> Tensor:
    experts.kept = [experts.weight[3]]
    return one_by_one(experts, x_BD)


def test_an_expert_that_is_held_beyond_its_pass_is_refused() -> None:
    run = run_of(kept_beyond)
    trained = StreamedRun(run, plan(run, STREAMED))
    with pytest.raises(OpenwaferError, match=r"a view of one of the weights 0\.weight"):
        trained.step(0)
    trained.close()


def test_a_rule_that_sums_over_the_weight_keeps_it_whole() -> None:
    run = replace(run_of(one_by_one), optimize=lambda model: Lamb(model.parameters(), lr=1e-2))
    assert not plan(run, STREAMED).plan.split.sliced


def test_experts_that_are_not_trained_stream_one_by_one() -> None:
    run = run_of(one_by_one)

    def build() -> nn.Module:
        model = run.build()
        model.get_parameter("0.weight").requires_grad_(False)
        return model

    frozen = replace(run, build=build)
    assert plan(frozen, STREAMED).plan.split.sliced == {"0.weight", "1.weight"}
    assert streamed_and_plain_differ_in(frozen) == []


def test_micro_batches_are_watched_expert_by_expert() -> None:
    """Slices of two layers and a micro-batch each: those that are used, and no others."""
    run = run_of(one_by_one)
    trained = StreamedRun(run, plan(run, STREAMED))
    seen: set[str] = set()
    trained.execution.watch_micro_batches(lambda index, name, gradient: seen.add(f"{name} {index}"))
    trained.step(0)
    trained.close()
    assert seen == {
        f"{layer}.weight..{expert} {index}"
        for layer in (0, 1)
        for expert in (1, 3, 4)
        for index in (0, 1)
    }


def whole_in_evaluation(experts: Experts, x_BD: Tensor) -> Tensor:
    if experts.training:
        return one_by_one(experts, x_BD)
    return in_shares(experts, x_BD) + by_slice(experts, x_BD) + by_attribute(experts, x_BD)


def test_a_use_of_the_whole_weight_that_no_plan_has_seen_is_served() -> None:
    run = run_of(whole_in_evaluation)
    trained = StreamedRun(run, plan(run, STREAMED))
    trained.model.eval()
    plain, x_BD = run.build().eval(), run.batch(0, 0)
    with torch.no_grad():
        expected = plain(x_BD)
    [found] = trained.execution.evaluate([lambda: trained.model(x_BD)])
    trained.close()
    assert torch.equal(found, expected)


class Around(nn.Module):
    """A block whose own code uses the weights of the experts in it."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = Experts(one_by_one)
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        out: Tensor = self.experts(self.gate(x_BD)) @ self.experts.weight[2]
        return out


def test_the_layer_around_the_experts_takes_them_as_well() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(Around(), Around())

    run = replace(run_of(one_by_one), build=build)
    assert plan(run, STREAMED).plan.split.sliced == {"0.experts.weight", "1.experts.weight"}
    assert streamed_and_plain_differ_in(run) == []
