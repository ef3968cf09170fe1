"""Models of recipes that leave out tokens: what is computed is the same, what is not is saved."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from openwafer.config import InvalidFieldError
from openwafer.recipes.depths.model import MixtureOfDepths
from openwafer.recipes.halting.model import HaltingTransformer
from tests.tables import case
from tests.training.stream.both_loops import (
    STREAMED,
    Run,
    StreamedRun,
    differing,
    plan,
    train_plainly,
)

WAYS = ("token", "sequence", "batch")
CALLS = 6


def halting(halts: str = "token") -> HaltingTransformer:
    torch.manual_seed(0)
    model = HaltingTransformer(32, 16, 2, CALLS, halts=halts)  # type: ignore[arg-type]
    nn.init.normal_(model.halting.weight, std=0.5)
    return model


def depths() -> MixtureOfDepths:
    torch.manual_seed(0)
    return MixtureOfDepths(32, 16, 2, 4)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    loss: Tensor = model(ids, labels=ids).loss
    return loss


def draw(generator: torch.Generator) -> Tensor:
    return torch.randint(32, (3, 20), generator=generator)


def run_of(build: Callable[[], nn.Module]) -> Run:
    return Run(
        build,
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
        draw,
        loss_of,
        num_steps=3,
    )


def flops_of(model: nn.Module, shape: tuple[int, int] = (3, 20)) -> int:
    ids = torch.randint(32, shape, generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        loss_of(model, ids)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("halts", WAYS)
def test_tokens_that_have_halted_change_nothing(halts: str) -> None:
    whole, model = halting(), halting(halts)
    whole.runs_whole = True
    losses = [loss_of(one, draw(torch.Generator().manual_seed(0))) for one in (whole, model)]
    torch.testing.assert_close(*losses)
    first, second = (
        torch.autograd.grad(loss, [*one.parameters()])
        for loss, one in zip(losses, (whole, model), strict=True)
    )
    torch.testing.assert_close(first, second)


def test_the_finer_halting_is_the_less_is_computed() -> None:
    models = [halting(), *map(halting, WAYS)]
    models[0].runs_whole = True
    for model in models:
        nn.init.constant_(model.halting.bias, 2.0)
        model.embedding.weight.data *= 50
    whole, by_token, by_sequence, by_batch = (flops_of(model, (16, 2)) for model in models)
    assert by_token < by_sequence < by_batch <= whole


def test_a_layer_with_a_router_takes_its_share_of_the_tokens() -> None:
    whole, model = depths(), depths()
    whole.runs_whole = True
    for layer in whole.layers:
        layer.register_forward_hook(lambda layer, given, out: seen.append(given[0].shape[1]))
    for layer in model.layers:
        layer.register_forward_hook(lambda layer, given, out: seen.append(given[0].shape[1]))
    seen: list[int] = []
    flops_of(whole)
    flops_of(model)
    assert seen == [20, 20, 20, 20, 20, 10, 20, 10]


@pytest.mark.parametrize("build", [halting, case(depths, by_default=False)])
def test_bits_are_those_of_the_plain_loop_and_flops_are_counted(
    build: Callable[[], nn.Module],
) -> None:
    run = run_of(build)
    planned = plan(run, replace(STREAMED, min_layer_bytes=1), budget=1 << 22)
    streamed = StreamedRun(run, planned)
    try:
        for step in range(run.num_steps):
            streamed.execution.device.reset_peak()
            streamed.step(step)
            flops = streamed.execution.device.flops
            assert flops is not None
            assert flops < planned.plan.calls.flops
        assert differing(streamed.parameters(), train_plainly(run)) == []
    finally:
        streamed.close()


def test_a_model_that_computes_nothing_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="0 is below 1"):
        HaltingTransformer(32, 16, 2, 0)
    with pytest.raises(InvalidFieldError, match="is not a share of the tokens"):
        MixtureOfDepths(32, 16, 2, 4, capacity=0.0)
    with pytest.raises(InvalidFieldError, match="0 is below 1; 1 gives all layers a router"):
        MixtureOfDepths(32, 16, 2, 4, every=0)
