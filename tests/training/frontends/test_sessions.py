"""A script of the session style has the bits of the plain loop, and its closures their step."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from openwafer.training.frontends.session import amp, cb_model, cbtorch, optim, program
from openwafer.training.frontends.session.lr_scheduler import set_rate
from openwafer.training.frontends.session.outputs import extract_loss
from openwafer.training.frontends.session.session import Session
from tests.tables import case
from tests.training.frontends.session_scripts import (
    BATCHES,
    MAX_NORM,
    Clip,
    Script,
    SessionScript,
    clip,
    no_clip,
    require_streamed,
)
from tests.training.stream.both_loops import differing
from tests.training.stream.small_gpt import build_gpt


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("clipping", [case(no_clip, by_default=False), clip])
def test_losses_and_weights_are_those_of_the_plain_loop(clipping: Clip) -> None:
    plain, found = Script(clip=clipping).train(), SessionScript(clip=clipping).train()
    assert found.losses == plain.losses
    assert differing(found.weights(), plain.weights()) == []


def test_a_clipper_of_the_optimizer_clips_before_its_step() -> None:
    found = SessionScript(momentum)
    vars(found.optimizer)["gradient_clipper"] = clip
    plain = Script(momentum, clip).train()
    assert differing(found.train().weights(), plain.weights()) == []


def test_a_scaler_clips_to_its_norm_and_leaves_the_loss() -> None:
    found = SessionScript(momentum)
    scaler = amp.GradScaler(loss_scale="dynamic", max_gradient_norm=MAX_NORM)
    loss = torch.ones(())
    plain = Script(momentum, clip).train()
    assert scaler(loss) is loss
    assert differing(found.train().weights(), plain.weights()) == []


def test_a_scaler_of_torchs_calls_takes_the_step() -> None:
    cbtorch.initialize()
    scaler, weight = amp.GradScaler(loss_scale="dynamic"), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert (weight.tolist(), scaler.get_scale()) == ([0.5, 0.5], 1.0)


def test_evaluation_alone_streams_and_has_the_losses_of_the_plain_loop() -> None:
    assert SessionScript().evaluate() == Script().evaluate()


class Guesses(nn.Module):
    """Returns tokens, which have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_gpt()

    def forward(self, batch: Tensor) -> Tensor:
        tokens: Tensor = self.model(batch).logits.argmax(-1)
        return tokens


@pytest.mark.parametrize("is_trained", [True, case(False, by_default=False)])
def test_a_model_that_returns_integers_alone_streams_to_be_evaluated(is_trained: bool) -> None:
    cbtorch.initialize(device_memory="200KiB")
    model = Guesses().eval().requires_grad_(is_trained)
    plain = [model(batch) for batch in BATCHES]
    cbtorch.module(model)
    with cbtorch.Session(loader := cbtorch.dataloader(BATCHES), "eval") as session:
        found = [model(batch) for batch in loader]
        require_streamed(session)
    assert all(map(torch.equal, found, plain))


def test_labels_of_int32_are_long_as_losses_of_torch_want_them() -> None:
    cbtorch.initialize(device_memory="200KiB")
    model = cbtorch.module(nn.Linear(4, 4).eval())
    batch = (torch.randn(2, 4), torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int16))
    with cbtorch.Session(loader := cbtorch.dataloader([batch]), "eval"):
        for features, labels, others in loader:
            assert nn.functional.cross_entropy(model(features), labels).isfinite()
            assert others.dtype is torch.int16


def test_evaluation_behind_training_sees_the_trained_weights() -> None:
    assert SessionScript().train().evaluate() == Script().train().evaluate()


@pytest.mark.slow
def test_a_second_session_goes_on_where_the_first_one_ended() -> None:
    found, plain = SessionScript().train(0, 2).train(2), Script().train()
    assert found.losses == plain.losses
    assert differing(found.weights(), plain.weights()) == []


def test_a_script_that_is_killed_goes_on_from_what_it_saved(tmp_path: Path) -> None:
    path, first = tmp_path / "checkpoint.mdl", SessionScript()
    loader = cbtorch.dataloader(BATCHES[:2])
    with cbtorch.Session(loader, "train") as session:
        for index, batch in enumerate(loader):
            first.step(index, batch)
            session.add_step_closure(lambda: cb_model.save(states(first), path))
    torch.manual_seed(7)
    second = SessionScript()
    load(second, path)
    second.train(2)
    assert differing(second.weights(), Script().train().weights()) == []


def states(script: Script) -> dict[str, object]:
    return {
        "model": script.model.state_dict(),
        "optimizer": script.optimizer.state_dict(),
        "schedule": script.scheduler.state_dict(),
    }


def load(script: Script, path: Path) -> None:
    for weight in script.model.parameters():
        weight.data.normal_()
    state = cbtorch.load(path)
    script.model.load_state_dict(state["model"])
    script.optimizer.load_state_dict(state["optimizer"])
    script.scheduler.load_state_dict(state["schedule"])


class Watched:
    """A session of which each step notes the head at its end."""

    def __init__(self) -> None:
        self.script, self.seen = SessionScript(), list[tuple[int, Tensor]]()

    def note(self, index: int) -> None:
        self.seen.append((index, self.script.weights()["head.weight"]))

    def run(self, last: int) -> "Watched":
        loader = cbtorch.dataloader(BATCHES)
        with cbtorch.Session(loader, "train") as session:
            for index, batch in enumerate(loader):
                session.add_step_closure(self.note, (index,))
                self.script.step(index, batch)
                if index == last:
                    break
        return self


def test_a_closure_sees_the_weights_behind_its_step() -> None:
    plain, expected = Script(), list[Tensor]()
    for index, batch in enumerate(BATCHES):
        plain.step(index, batch)
        expected.append(plain.weights()["head.weight"])
    seen = Watched().run(last=3).seen
    assert [index for index, _ in seen] == [0, 1, 2, 3]
    assert all(torch.equal(found, head) for (_, found), head in zip(seen, expected, strict=True))


def test_the_closures_of_a_step_that_leaves_the_loop_run_at_the_end_of_the_session() -> None:
    assert [index for index, _ in Watched().run(last=1).seen] == [0, 1]


def test_marking_a_step_runs_its_closures_once() -> None:
    script, seen = SessionScript(), list[int]()
    note = cb_model.step_closure(seen.append)
    loader = cbtorch.dataloader(BATCHES[:1])
    with cbtorch.Session(loader, "train"):
        for index, batch in enumerate(loader):
            script.step(index, batch)
            note(cb_model.get_run_step())
            assert seen == []
            cb_model.mark_step()
            assert seen == [1]
    assert seen == [1]


class Metric(nn.Module):
    """A model whose forward asks for a closure, as metrics of such scripts do."""

    def __init__(self, inside: nn.Module, seen: list[float]) -> None:
        super().__init__()
        self.inside = inside
        self.note = cb_model.step_closure(lambda loss: seen.append(loss.item()))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.inside(tokens, labels=labels).loss
        self.note(loss.detach())
        return loss


def test_a_closure_of_a_forward_runs_once_a_step_and_not_for_the_plan() -> None:
    seen, script = list[float](), Script()
    cbtorch.initialize(device_memory="600KiB")
    model = cbtorch.module(Metric(script.model, seen))
    cbtorch.optimizer(script.optimizer)
    loader = cbtorch.dataloader(BATCHES[:2])
    with cbtorch.Session(loader, "train") as session:
        for index, batch in enumerate(loader):
            torch.manual_seed(index)
            script.optimizer.zero_grad()
            model(batch, labels=batch).backward()
            script.optimizer.step()
        assert session.streamed.plan is not None
    assert seen == Script().train(0, 2).losses


def test_a_step_closure_outside_of_a_session_is_called_at_once() -> None:
    seen = list[int]()
    cb_model.step_closure(seen.append)(1)
    assert seen == [1]


def test_a_script_asks_whether_it_streams() -> None:
    before = cb_model.use_cs()
    cbtorch.initialize()
    assert (before, cb_model.use_cs(), cb_model.is_streamer()) == (False, True, True)
    assert (cb_model.num_streamers(), cb_model.get_streaming_rank()) == (1, 0)


def test_a_script_sets_what_it_likes_in_the_compiler() -> None:
    state = cbtorch.state()
    state.full_config.placement.buses.margin = 0.5
    assert cbtorch.state().full_config.placement.buses.margin == 0.5
    assert (cbtorch.env().appliance, state.is_inside_execution_loop) == (False, False)


@pytest.mark.parametrize(
    "make", [lambda x: x, lambda x: (x, None), lambda x: SimpleNamespace(loss=x)]
)
def test_the_loss_of_outputs_is_found(make: Callable[[Tensor], Any]) -> None:
    loss = torch.ones(())
    assert extract_loss(make(loss)) is loss


def test_a_value_of_all_processes_is_that_of_this_one() -> None:
    assert cb_model.mesh_reduce("loss", 2.0, sum) == 2.0


def test_a_loader_draws_no_random_number_before_it_is_iterated_over() -> None:
    numbers = torch.utils.data.TensorDataset(torch.arange(6))
    batches = torch.utils.data.DataLoader(numbers, shuffle=True)
    before = torch.get_rng_state()
    cbtorch.dataloader(batches)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_has_what_its_batches_have() -> None:
    numbers = torch.utils.data.TensorDataset(torch.arange(6))
    loader = cbtorch.dataloader(torch.utils.data.DataLoader(numbers, batch_size=2))
    assert (len(loader), loader.batch_size, [batch[0].tolist() for batch in loader]) == (
        3,
        2,
        [[0, 1], [2, 3], [4, 5]],
    )


class ScriptError(Exception):
    """Raised by a script."""


def train_until_error(script: Script) -> None:
    loader = cbtorch.dataloader(BATCHES)
    with cbtorch.Session(loader, "train"):
        for index, batch in enumerate(loader):
            script.step(index, batch)
            raise ScriptError("here")


def test_an_exception_in_a_session_leaves_a_plain_model() -> None:
    script, plain = SessionScript(), Script()
    with pytest.raises(ScriptError, match="here"):
        train_until_error(script)
    plain.step(0, BATCHES[0])
    assert differing(script.weights(), plain.weights()) == []


def test_adamw_of_the_style_adds_epsilon_to_the_uncorrected_moment() -> None:
    weight, gradient = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 0.25])
    parameter = nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    optim.AdamW([parameter], lr=0.1, eps=1e-2, weight_decay=0.1).step()
    first, second = 0.1 * gradient, 0.001 * gradient**2
    rate = 0.001**0.5 / 0.1
    expected = weight - 0.1 * (rate * first / (second.sqrt() + 1e-2) + 0.1 * weight)
    torch.testing.assert_close(parameter.detach(), expected)


def epsilon_hat(model: nn.Module) -> Optimizer:
    return optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def test_an_optimizer_of_the_style_needs_no_word_to_the_session() -> None:
    plain = Script(epsilon_hat).train()
    cbtorch.initialize(device_memory="600KiB")
    found = SessionScript(epsilon_hat).train()
    assert differing(found.weights(), plain.weights()) == []


def test_a_session_takes_the_memory_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_DEVICE_MEMORY", "600KiB")
    script = Script()
    cbtorch.initialize()
    cbtorch.optimizer(script.optimizer)
    model, loader = cbtorch.module(script.model), cbtorch.dataloader(BATCHES[:1])
    with Session(loader, "train") as session:
        for batch in loader:
            script.step(0, batch)
        plan = session.streamed.plan
    assert model is script.model
    assert plan is not None
    assert plan.device_budget_bytes == 600 << 10


def scheduled(script: Script) -> Script:
    """Warm-up and decay, as a script of that time gives them to what cbtorch.optimizer returned."""
    rates = cbtorch.optim.lr_scheduler
    inner = script.optimizer._optimizer  # type: ignore[attr-defined]  # noqa: SLF001 - the vendor's
    rates.Polynomial(inner, 0.0, 1e-2, 2)
    rates.CosineDecay(script.optimizer, 1e-2, 1e-3, decay_steps=2)
    return script


def by_hand(script: Script, first: int = 0) -> Script:
    rates = [0.0, 5e-3, 1e-2, 5.5e-3]
    for index, batch in enumerate(BATCHES[first:], first):
        script.optimizer.param_groups[0]["lr"] = rates[index]
        script.losses.append(script.step(index, batch).item())
    return script


def test_states_of_an_optimizer_are_saved_as_they_are_unless_it_converts_them() -> None:
    cbtorch.initialize()
    optimizer: Any = cbtorch.optimizer(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5))
    state = optimizer.state_dict()
    assert optimizer.convert_state_dict_for_checkpoint(state) is state


def test_schedules_of_an_optimizer_follow_each_other() -> None:
    plain, found = by_hand(Script(momentum)), scheduled(SessionScript(momentum)).train()
    assert found.losses == plain.losses


def test_a_schedule_goes_on_with_the_state_of_its_optimizer(tmp_path: Path) -> None:
    first, path = scheduled(SessionScript(momentum)).train(0, 2), tmp_path / "saved.mdl"
    cb_model.save(states(first), path)
    second = SessionScript(momentum)
    load(second, path)
    scheduled(second).train(2)
    assert differing(second.weights(), by_hand(Script(momentum)).weights()) == []


def test_a_schedule_that_does_not_begin_anew_counts_all_steps() -> None:
    cbtorch.initialize()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    cbtorch.optim.lr_scheduler.Constant(optimizer, 1.0, 1)
    cbtorch.optim.lr_scheduler.Step(optimizer, 1.0, 0.5, 1, True)
    found = list[float]()
    for _ in range(3):
        set_rate(optimizer, program.current("a test").rates_of(optimizer))
        found.append(optimizer.param_groups[0]["lr"])
    assert found == [1.0, 0.5, 0.25]
