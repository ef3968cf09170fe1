"""A loop that exists keeps its lines and its bits when its model's weights stream."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Mode
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.stream.axes import TIERS
from tests.training.stream.both_loops import STREAMED, differing, seed_of
from tests.training.stream.small_gpt import adamw, build_gpt, gpt_loss, gpt_run

MAX_NORM = 0.5
CAP = "1MiB"


class Loop:
    """A user's loop over the small GPT; `clip` is what it calls between backward and update."""

    def __init__(self, optimize: Callable[[nn.Module], torch.optim.Optimizer] = adamw) -> None:
        self.model: nn.Module = build_gpt()
        self.optimizer = optimize(self.model)
        self.clip: Callable[[float], Tensor] = self.clip_plainly
        self.norms: list[Tensor] = []

    def clip_plainly(self, max_norm: float) -> Tensor:
        return clip_grad_norm_(self.model.parameters(), max_norm)

    def backward(self, step: int, index: int = 0) -> None:
        seed_of(step, index)
        gpt_loss(self.model, gpt_run().batch(step, index)).backward()

    def run(self, num_steps: int = 3, num_backwards: int = 1) -> "Loop":
        for step in range(num_steps):
            for index in range(num_backwards):
                self.backward(step, index)
            self.norms.append(self.clip(MAX_NORM))
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


class Streamed(Loop):
    """The same loop, wrapped."""

    def __init__(self, tier: StoreTier = StoreTier.DRAM, folder: Path | None = None) -> None:
        super().__init__()
        options = replace(STREAMED, tier=tier, host_memory_bytes=2 << 20)
        self.streamed = stream_weights(
            self.model, self.optimizer, device_memory=CAP, folder=folder, options=options
        )
        self.clip = self.streamed.clip_grad_norm_


@pytest.fixture
def loop() -> Iterator[Streamed]:
    made = Streamed()
    yield made
    made.streamed.close()


# Over DRAM the other tests of this file go.
@pytest.fixture(params=[case(t, by_default=t is StoreTier.DISK) for t in TIERS])
def on_tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Streamed]:
    made = Streamed(request.param, tmp_path / "store")
    yield made
    made.streamed.close()


@pytest.mark.slow
def test_weights_are_those_of_the_plain_loop(on_tier: Streamed) -> None:
    assert differing(on_tier.run().weights(), Loop().run().weights()) == []


@pytest.mark.slow
def test_norms_are_those_of_torch(loop: Streamed) -> None:
    assert loop.run().norms == Loop().run().norms


def test_a_norm_that_is_not_finite_is_refused_on_request(loop: Streamed) -> None:
    for weight in loop.model.get_submodule("head").parameters():
        weight.data.fill_(torch.nan)
    loop.backward(step=0)
    with pytest.raises(OpenwaferError, match="total norm is nan, so that they cannot be clipped"):
        loop.streamed.clip_grad_norm_(MAX_NORM, error_if_nonfinite=True)


@pytest.mark.slow
def test_gradients_of_several_backwards_add_up(loop: Streamed) -> None:
    plain = Loop().run(num_backwards=2)
    assert differing(loop.run(num_backwards=2).weights(), plain.weights()) == []


@pytest.mark.slow
def test_a_gradient_that_is_zeroed_is_not_applied(loop: Streamed) -> None:
    loop.backward(step=7)
    loop.optimizer.zero_grad()
    assert differing(loop.run().weights(), Loop().run().weights()) == []


def test_the_gradients_of_a_step_can_be_read(loop: Streamed) -> None:
    plain = Loop()
    for each in (loop, plain):
        each.backward(step=0)
    expected = {name: p.grad for name, p in plain.model.named_parameters() if p.grad is not None}
    assert differing(dict(loop.streamed.gradients()), expected) == []


def test_torch_clips_what_is_in_the_store(loop: Streamed) -> None:
    loop.clip = loop.clip_plainly
    assert loop.run().norms == Loop().run().norms
    assert differing(loop.weights(), Loop().run().weights()) == []


def test_a_step_that_was_not_taken_is_taken_after_the_stream(loop: Streamed) -> None:
    plain = Loop()
    for each in (loop, plain):
        each.backward(step=0)
        each.clip(MAX_NORM)
    loop.streamed.close()
    for each in (loop, plain):
        each.optimizer.step()
    assert differing(loop.weights(), plain.weights()) == []


@pytest.mark.slow
def test_closing_gives_the_model_its_weights_back(loop: Streamed) -> None:
    loop.run()
    loop.streamed.close()
    assert differing(dict(loop.model.named_parameters()), Loop().run().weights()) == []
    loop.backward(step=0)
    assert all(p.grad is not None for p in loop.model.parameters())


@pytest.mark.slow
def test_a_model_that_streams_can_be_evaluated_between_steps(loop: Streamed) -> None:
    plain = Loop().run()
    loop.run()
    tokens = gpt_run().batch(9, 0)
    with torch.no_grad():
        found, expected = (gpt_loss(each.model.eval(), tokens) for each in (loop, plain))
    assert torch.equal(found, expected)


def test_what_the_optimizer_does_not_have_stays_as_it_is() -> None:
    def only_heads(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.get_submodule("head").parameters(), lr=1e-2, fused=True)

    plain, made = Loop(only_heads), Loop(only_heads)
    streamed = stream_weights(made.model, made.optimizer, device_memory=CAP, options=STREAMED)
    # The plain loop would clip by the gradients that nobody zeroes as well.
    made.clip = plain.clip = torch.tensor
    assert differing(made.run().weights(), plain.run().weights()) == []
    streamed.close()


def test_a_model_that_fits_is_left_as_it_is() -> None:
    made = Loop()
    streamed = stream_weights(made.model, made.optimizer, device_memory="1GiB")
    made.clip = streamed.clip_grad_norm_
    assert differing(made.run().weights(), Loop().run().weights()) == []
    assert streamed.plan is not None
    assert streamed.plan.mode is Mode.RESIDENT
    streamed.close()


@pytest.mark.slow
def test_an_optimizer_that_has_begun_goes_on() -> None:
    made = Loop().run(num_steps=2)
    streamed = stream_weights(made.model, made.optimizer, device_memory=CAP, options=STREAMED)
    made.clip = streamed.clip_grad_norm_
    assert differing(made.run().weights(), Loop().run(num_steps=2).run().weights()) == []
    streamed.close()


@pytest.mark.slow
def test_a_budget_too_small_is_refused_with_the_numbers() -> None:
    made = Loop()
    stream_weights(made.model, made.optimizer, device_memory=5000)
    with pytest.raises(OpenwaferError, match=r"the budget is 5,000 bytes \([\d,]+ short\)"):
        made.backward(step=0)


def test_an_embedding_with_sparse_gradients_is_refused() -> None:
    loop = Loop()
    embedding = next(one for one in loop.model.modules() if isinstance(one, nn.Embedding))
    embedding.sparse = True
    stream_weights(loop.model, loop.optimizer, device_memory=CAP, options=STREAMED)
    with pytest.raises(OpenwaferError, match="has sparse=True, and the parameter store keeps"):
        loop.run(1)


def test_an_embedding_that_scales_its_own_weights_is_refused() -> None:
    loop = Loop()
    embedding = next(one for one in loop.model.modules() if isinstance(one, nn.Embedding))
    embedding.max_norm = 1.0
    stream_weights(loop.model, loop.optimizer, device_memory=CAP, options=STREAMED)
    with pytest.raises(OpenwaferError, match=r"max_norm=1\.0 in every forward"):
        loop.run(1)


@pytest.mark.parametrize("text", ["2 gigs", "1.5B", ""])
def test_a_device_memory_that_is_no_size_is_told(text: str) -> None:
    model = build_gpt()
    with pytest.raises(OpenwaferError, match=f"device_memory: '{text}' is not a .*(.|\n)*2GiB"):
        stream_weights(model, adamw(model), device_memory=text)


def test_a_plan_tells_what_a_step_takes_when_it_is_asked_to_measure(on_tier: Streamed) -> None:
    assert on_tier.streamed.predict() is None
    on_tier.run(1)
    plan, predicted = on_tier.streamed.plan, on_tier.streamed.predict()
    assert plan is not None
    assert predicted is not None
    assert plan.predicted_step_seconds is None
    assert predicted.predicted_step_seconds is not None
    assert plan.step_bytes == predicted.step_bytes
