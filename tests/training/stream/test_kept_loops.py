"""What loops do beside a plain step: the same bits when the weights stream, or a clear refusal."""

import copy
import gc
import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import StreamedLoop, stream_weights
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.stream.both_loops import STREAMED, differing

CAP = "300KiB"
SIZE = 64


class Layered(nn.Module):
    """Four layers with dropout and running statistics, and a pinned scale."""

    def __init__(self, recomputes: bool | None = None) -> None:
        super().__init__()
        self.inlet = nn.Linear(SIZE, SIZE)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE), nn.Dropout(0.1))
            for _ in range(4)
        )
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.counts = nn.Parameter(torch.arange(4), requires_grad=False)
        self.recomputes = recomputes
        self.num_skipped = 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for layer in self.layers[self.num_skipped :]:
            if self.recomputes is None:
                x = layer(x).tanh()
            else:
                x = checkpoint(layer, x, use_reentrant=self.recomputes).tanh()
        return x * self.scale


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.is_floating_point()], lr=1e-2)


def loss_of(model: nn.Module, step: int) -> Tensor:
    torch.manual_seed(step)
    loss: Tensor = model(torch.randn(8, SIZE)).pow(2).mean()
    return loss


def train(model: nn.Module, optimizer: Optimizer, steps: range = range(2)) -> None:
    for step in steps:
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def stream(model: nn.Module, optimizer: Optimizer) -> StreamedLoop:
    return stream_weights(model, optimizer, device_memory=CAP, options=STREAMED)


def without_gradients(model: nn.Module, optimizer: Optimizer) -> None:
    with torch.no_grad():
        loss_of(model, 9)
    train(model, optimizer)


def forward_between(model: nn.Module, optimizer: Optimizer) -> None:
    for step in range(2):
        loss = loss_of(model, step)
        with torch.no_grad():
            loss_of(model.eval(), 9)
        model.train()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def two_forwards(model: nn.Module, optimizer: Optimizer) -> None:
    for step in range(2):
        (loss_of(model, step) + loss_of(model, step + 5)).backward()
        optimizer.step()
        optimizer.zero_grad()


def two_backwards(model: nn.Module, optimizer: Optimizer) -> None:
    loss = loss_of(model, 0)
    loss.backward(retain_graph=True)
    (loss * 0.5).backward()
    optimizer.step()


def a_closure(model: nn.Module, optimizer: Optimizer) -> None:
    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    optimizer.step(closure)


def zeroes_the_model(model: nn.Module, optimizer: Optimizer) -> None:
    for step in range(3):
        model.zero_grad()
        loss_of(model, step).backward()
    optimizer.step()


def drops_gradients(model: nn.Module, optimizer: Optimizer) -> None:
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = None
        loss_of(model, step).backward()
    optimizer.step()


def leaves_a_backward(model: nn.Module, optimizer: Optimizer) -> None:
    # As a discriminator is left by the step of its generator.
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        loss_of(model, step + 5).backward()


def skips_layers(model: nn.Module, optimizer: Optimizer) -> None:
    assert isinstance(model, Layered)
    for step, model.num_skipped in enumerate((2, 0, 3, 0, 1)):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        train(model, optimizer, range(step, step + 1))


def goes_back(model: nn.Module, optimizer: Optimizer) -> None:
    train(model, optimizer)
    weights, states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(2, 4))
    model.load_state_dict(weights)
    optimizer.load_state_dict(states)
    train(model, optimizer, range(4, 6))


def uses_a_part(model: nn.Module, optimizer: Optimizer) -> None:
    train(model, optimizer)
    x = torch.ones(2, SIZE)
    parts = (model.get_submodule("inlet"), model.eval().get_submodule("layers.1"))
    with torch.no_grad():
        found = [part(x).sum() for part in parts]
    model.register_buffer("found", torch.stack(found))


def is_interrupted(model: nn.Module, optimizer: Optimizer) -> None:
    train(model, optimizer)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    handle = model.get_submodule("layers.2").register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        loss_of(model, 2)
    handle.remove()
    train(model, optimizer, range(3, 5))


def steps_again(model: nn.Module, optimizer: Optimizer) -> None:
    loss_of(model, 1).backward()
    optimizer.step()
    optimizer.step()


def zeroes_nothing(model: nn.Module, optimizer: Optimizer) -> None:
    for step in range(2):
        loss_of(model, step).backward()
        optimizer.step()


Lines = Callable[[nn.Module, Optimizer], None]
LOOPS: list[Lines] = [
    *(without_gradients, forward_between, two_forwards, two_backwards, a_closure, goes_back),
    *(
        zeroes_the_model,
        drops_gradients,
        leaves_a_backward,
        uses_a_part,
        is_interrupted,
        skips_layers,
        steps_again,
        zeroes_nothing,
    ),
]


def trained(loop: Callable[..., None], *, streams: bool, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Layered(**options)
    optimizer = adamw(model)
    streamed = stream(model, optimizer) if streams else None
    loop(model, optimizer)
    found = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if streamed is not None:
        streamed.close()
    return found


ROWS = (
    (forward_between, two_forwards, a_closure),
    (zeroes_the_model, leaves_a_backward, two_backwards),
    (uses_a_part, is_interrupted, skips_layers),
    (without_gradients, drops_gradients, steps_again, zeroes_nothing, goes_back),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].__name__)
def test_loops_that_share_a_plan_learn_what_they_learn_plainly(row: tuple[Lines, ...]) -> None:
    def loops(model: nn.Module, optimizer: Optimizer) -> None:
        for loop in row:
            loop(model, optimizer)
            optimizer.zero_grad()

    assert differing(trained(loops, streams=True), trained(loops, streams=False)) == []


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: str(loop.__name__))
def test_a_loop_learns_what_it_learns_plainly(loop: Callable[..., None]) -> None:
    assert differing(trained(loop, streams=True), trained(loop, streams=False)) == []


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpoints_of_the_model_itself_are_honoured(is_reentrant: bool) -> None:
    found, plain = (trained(train, streams=s, recomputes=is_reentrant) for s in (True, False))
    # A layer that is run again by torch counts its running statistics twice.
    weights = [name for name, _ in Layered().named_parameters()]
    assert differing(*({name: one[name] for name in weights} for one in (found, plain))) == []


@pytest.mark.slow
def test_training_goes_on_plainly_and_streamed_anew() -> None:
    model, plain = Layered(), Layered()
    plain.load_state_dict(model.state_dict())
    optimizer, plain_optimizer = adamw(model), adamw(plain)
    with stream(model, optimizer):
        train(model, optimizer, range(2))
    train(model, optimizer, range(2, 4))
    with stream(model, optimizer):
        train(model, optimizer, range(4, 6))
    train(plain, plain_optimizer, range(6))
    assert differing(model.state_dict(), plain.state_dict()) == []


def trained_by_two(*, streams: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Layered()
    optimizers = [adamw(model.inlet), adamw(model.layers)]
    options: dict[str, Any] = {"device_memory": CAP, "options": STREAMED}
    streamed = stream_weights(model, optimizers, **options) if streams else None
    for step in range(3):
        loss_of(model, step).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
    if streamed is not None:
        streamed.close()
    return model.state_dict()


def test_several_optimizers_step_together() -> None:
    assert differing(trained_by_two(streams=True), trained_by_two(streams=False)) == []


def test_weights_are_read_record_by_record() -> None:
    model = Layered()
    optimizer = adamw(model)
    streamed = stream(model, optimizer)
    train(model, optimizer)
    found, expected = dict(streamed.weights()), model.state_dict()
    streamed.close()
    assert differing(found, {name: expected[name] for name in found}) == []


def cast(model: nn.Module, optimizer: Optimizer) -> None:
    # As accelerate wraps the forward of a model it prepares.
    casting = torch.autocast("cpu", dtype=torch.bfloat16)
    forward: Any = model.forward
    model.forward = MethodType(casting(forward.__func__), model)
    train(model, optimizer)


def test_a_forward_that_is_wrapped_before_the_first_step_stays_wrapped() -> None:
    assert differing(trained(cast, streams=True), trained(cast, streams=False)) == []
    assert not torch.is_autocast_enabled("cpu")


def test_the_forward_keeps_its_signature() -> None:
    model = Layered()
    with stream(model, adamw(model)):
        assert list(inspect.signature(model.forward).parameters) == ["x"]
    assert "forward" not in model.__dict__


def unfreezes(model: nn.Module, _optimizer: Optimizer) -> None:
    model.get_submodule("inlet").requires_grad_(False)
    loss_of(model, 1)
    model.get_submodule("inlet").requires_grad_(True)
    loss_of(model, 1)


def grows(model: nn.Module, optimizer: Optimizer) -> None:
    loss_of(model, 1).backward()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    optimizer.step()


def differentiates_twice(model: nn.Module, _optimizer: Optimizer) -> None:
    x = torch.ones(4, SIZE, requires_grad=True)
    torch.autograd.grad(model(x).sum(), x, create_graph=True)


def assigns(model: nn.Module, _optimizer: Optimizer) -> None:
    loss_of(model, 1)
    model.load_state_dict(model.state_dict(), assign=True)


def copies(model: nn.Module, _optimizer: Optimizer) -> None:
    loss_of(model, 1)
    copy.deepcopy(model)


def saves_whole(model: nn.Module, _optimizer: Optimizer) -> None:
    loss_of(model, 1)
    torch.save(model, Path("/dev/null"))


REFUSED = {
    unfreezes: r"'inlet.weight' requires a gradient now and did not when the run was planned",
    grows: r"has 20 parameters now and had 19 when",
    differentiates_twice: r"backward\(create_graph=True\) came to the streamed record '\(pinned\)'",
    assigns: r"load_state_dict\(assign=True\) would put other parameters",
    copies: r"this Layered is streamed, and the store of its weights cannot be copied",
    saves_whole: r"this Layered is streamed, and the store of its weights cannot be copied",
}


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        case(loop, message, by_default=loop is not saves_whole, id=loop.__name__)
        for loop, message in REFUSED.items()
    ],
)
def test_what_would_differ_is_refused(loop: Callable[..., None], message: str) -> None:
    model = Layered()
    optimizer = adamw(model)
    with stream(model, optimizer), pytest.raises(OpenwaferError, match=message):
        loop(model, optimizer)


def drop_a_streamed_model(folder: Path) -> None:
    model = Layered()
    optimizer = adamw(model)
    options = replace(STREAMED, tier=StoreTier.DISK, host_memory_bytes=200_000)
    stream_weights(model, optimizer, device_memory=CAP, folder=folder, options=options)
    train(model, optimizer)


def test_a_model_that_is_dropped_gives_its_threads_and_its_folder_free(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    drop_a_streamed_model(tmp_path)
    new = {one.name for one in {*threading.enumerate()} - before}
    assert new >= {"store-read-0", "store-write-0"}
    gc.collect()
    assert {*threading.enumerate()} <= before


def test_a_model_is_streamed_once() -> None:
    model = Layered()
    streamed = stream(model, adamw(model))
    with streamed, pytest.raises(OpenwaferError, match="this Layered is streamed already"):
        stream(model, adamw(model))


@pytest.mark.slow
def test_a_budget_too_small_stays_refused() -> None:
    model = Layered()
    with stream_weights(model, adamw(model), device_memory=5000):
        for _ in range(2):
            with pytest.raises(OpenwaferError, match="the budget is 5,000 bytes"):
                loss_of(model, 1)


def test_weights_stay_in_a_model_whose_optimizer_state_does_not_fit() -> None:
    model = Layered()
    optimizer = adamw(model)
    train(model, optimizer)
    optimizer.state[model.inlet.weight]["exp_avg"] = torch.zeros(3)
    before = copy.deepcopy(model.state_dict())
    with stream(model, optimizer):
        text = r"state 'exp_avg' of 'inlet.weight' is \(3,\) torch.float32, and .* \(64, 64\)"
        with pytest.raises(OpenwaferError, match=text):
            loss_of(model, 2)
    assert differing(before, model.state_dict()) == []
    assert len(optimizer.state) == len(optimizer.param_groups[0]["params"])
