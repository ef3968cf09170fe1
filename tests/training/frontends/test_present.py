"""A script of the present style has the bits of the plain loop, and its closures their step."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from openwafer.training.frontends.present import cstorch, distributed
from openwafer.training.frontends.present.cluster import TaskSpec
from openwafer.training.frontends.present.data import compute_num_steps
from openwafer.training.frontends.present.loader import DataLoader
from openwafer.training.frontends.present.rates import RateTracker
from tests.tables import case
from tests.training.frontends.present_scripts import (
    PlainScript,
    PresentScript,
    adamw,
    begin,
    executor_of,
    loader_of,
)
from tests.training.frontends.session_scripts import BATCHES, CAP, Clip, clip, no_clip
from tests.training.stream.both_loops import differing

Optimize = Callable[[nn.Module], Optimizer]


def momentum(model: nn.Module) -> Optimizer:
    return cstorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def largest_moments(model: nn.Module) -> Optimizer:
    groups = [{"params": [p], "weight_decay": 0.1 * (p.ndim > 1)} for p in model.parameters()]
    return cstorch.optim.Adam(groups, lr=1e-2, amsgrad=True)


@pytest.mark.parametrize(
    ("optimize", "clipping"),
    [
        (adamw, clip),
        case(momentum, no_clip, by_default=False),
        case(largest_moments, no_clip, by_default=False),
    ],
)
def test_losses_and_weights_are_those_of_the_plain_loop(optimize: Optimize, clipping: Clip) -> None:
    plain = PlainScript(optimize, clipping).train()
    found = PresentScript(optimize, clipping).train()
    assert found.losses == plain.losses
    assert differing(found.weights(), plain.weights()) == []


def test_evaluation_alone_streams_and_has_the_losses_of_the_plain_loop() -> None:
    assert PresentScript(adamw).evaluate() == PlainScript(adamw).evaluate()


def test_a_second_loop_goes_on_where_the_first_one_ended() -> None:
    plain, found = PlainScript(adamw).train(), PresentScript(adamw).train(0, 2)
    assert found.evaluate() == PlainScript(adamw).train(0, 2).evaluate()
    found.model.train()
    assert found.train(2).losses == plain.losses


def test_a_state_exists_before_the_first_step() -> None:
    optimizer = PresentScript(adamw).optimizer
    (state, *_) = optimizer.state_dict()["state"].values()
    assert sorted(state) == ["beta1_power", "beta2_power", "exp_avg", "exp_avg_sq"]


class Noting(PresentScript):
    """Notes the head and the step at the end of steps, by one closure of each kind."""

    def run(self, **options: Any) -> dict[str, list[int]]:
        seen: dict[str, list[int]] = {"step": [], "checkpoint": []}
        self.heads = list[Tensor]()

        @cstorch.step_closure
        def note(step: Tensor) -> None:
            seen["step"].append(int(step))
            self.heads.append(self.weights()["head.weight"])

        save = cstorch.checkpoint_closure(lambda: seen["checkpoint"].append(at()))
        executor = executor_of(BATCHES, **options)

        def at() -> int:
            return executor.user_iteration

        for index, batch in enumerate(executor):
            self.traced(index, batch)
            number = torch.tensor(index)
            note(number)
            save()
            number.fill_(-1)
        return seen


def test_a_closure_sees_the_weights_behind_its_step_and_the_tensors_of_its_call() -> None:
    script, plain = Noting(adamw), PlainScript(adamw)
    assert script.run()["step"] == [0, 1, 2, 3]
    plain.train(0, 1)
    assert torch.equal(script.heads[0], plain.weights()["head.weight"])


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        case({}, [], by_default=False),
        case({"checkpoint_steps": 2}, [2, 4], by_default=False),
        case({"checkpoint_steps": 3}, [3, 4], by_default=True),
        case({"checkpoint_steps": 9}, [4], by_default=False),
        case({"checkpoint_steps": 0}, [], by_default=False),
    ],
)
def test_a_checkpoint_closure_is_called_in_its_steps(options: Any, steps: list[int]) -> None:
    assert Noting(adamw).run(**options)["checkpoint"] == steps


class OnMachine(Noting):
    """The same on the machine that the script means."""

    kind = "CSX"


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        case({"activation_steps": 3}, [2, 3], by_default=False),
        case({"activation_steps": 4, "checkpoint_steps": 2}, [1, 3], by_default=True),
        case({"activation_steps": 9}, [3], by_default=False),
    ],
)
def test_closures_of_the_machine_are_called_in_activation_steps(
    options: Any, steps: list[int]
) -> None:
    assert OnMachine(adamw).run(**options)["step"] == steps


def test_closures_outside_of_a_loop_are_called_at_once() -> None:
    seen = list[int]()
    cstorch.step_closure(seen.append)(1)
    begin()
    cstorch.checkpoint_closure(seen.append)(2)
    assert seen == [1, 2]


def test_a_loop_that_is_left_gives_weights_back_and_forgets_its_closures() -> None:
    script, plain, seen = PresentScript(adamw), PlainScript(adamw).train(0, 2), list[int]()
    note = cstorch.step_closure(seen.append)
    for index, batch in enumerate(executor_of(BATCHES)):
        script.traced(index, batch)
        note(index)
        if index == 1:
            break
    assert seen == [0]
    assert differing(script.weights(), plain.weights()) == []


def test_a_loader_begins_anew_where_its_batches_end() -> None:
    begin()
    cstorch.compile(nn.Linear(2, 2))
    batches = [torch.tensor([number]) for number in range(3)]
    found = [int(batch) for batch in executor_of(batches, num_steps=7)]
    assert found == [0, 1, 2, 0, 1, 2, 0]


class Counting:
    """Batches that say where they are."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while True:
            self.at += 1
            yield torch.tensor([self.at])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.at = state_dict["at"]

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        return worker_states[0]

    def deaggregate_state_dict(self, aggregated_state_dict: dict[str, Any]) -> dict[str, Any]:
        return aggregated_state_dict


def test_a_loader_goes_on_where_it_was() -> None:
    first, second = DataLoader(Counting), DataLoader(Counting)
    assert [int(batch) for batch in islice(first, 3)] == [1, 2, 3]
    second.load_state_dict(first.state_dict())
    assert [int(batch) for batch in islice(second, 2)] == [4, 5]
    assert (first.is_restartable, loader_of([]).is_restartable) == (True, False)


def test_a_script_asks_where_it_is() -> None:
    before = cstorch.use_cs(), cstorch.current_backend(raise_exception=False)
    made = cstorch.backend("csx", cluster_config=distributed.ClusterConfig(num_csx=4))
    assert made is not None
    assert before == (False, None)
    assert (cstorch.use_cs(), cstorch.backend()) == (True, made)
    assert (distributed.num_streamers(), distributed.get_streaming_rank()) == (1, 0)
    assert distributed.get_streaming_batch_size(120) == 120
    with made.device:
        assert made.torch_device == cstorch.current_torch_device()
    assert cstorch.compile(nn.Linear(2, 2)).device == made.torch_device


def test_an_executor_tells_its_steps_and_rates() -> None:
    begin()
    cstorch.compile(nn.Linear(2, 2))
    executor = executor_of([torch.zeros(5, 2)] * 3, activation_steps=2, checkpoint_steps=3)
    at = [(executor.iteration, executor.on_final_iteration) for _ in executor]
    assert at == [(0, False), (1, False), (2, True)]
    assert (len(executor), executor.activation_steps) == (3, 1)
    assert executor.profiler.rate_tracker.total_samples == 15
    assert min(executor.profiler.rate(), executor.profiler.global_rate()) > 0
    assert executor.dataloader.batch_size == 5


def test_a_loader_is_told_how_far_the_loop_is() -> None:
    begin()
    cstorch.compile(nn.Linear(2, 2))
    found = [distributed.get_worker_state()]
    note = cstorch.step_closure(lambda: found.append(distributed.get_worker_state()))
    for _ in executor_of([torch.zeros(5, 2)] * 2):
        note()
    assert [(one.worker_step, one.samples_streamed) for one in found] == [(0, 0), (1, 5), (2, 10)]
    assert distributed.service_resolver().cluster_spec.task() == TaskSpec(0, 0, 0)


def test_a_rate_is_smoothed_with_the_one_before() -> None:
    clock = iter([0.0, 2.0, 4.0, 4.0]).__next__
    tracker = RateTracker(0.4, clock)
    tracker.add(10)
    assert tracker.rate == 5.0
    tracker.add(30)
    assert tracker.rate == pytest.approx(0.6 * 15 + 0.4 * 5)
    assert tracker.global_rate == 10.0


def test_steps_follow_from_epochs_and_from_what_is_done() -> None:
    batches = range(10)
    assert compute_num_steps(batches, num_epochs=3, grad_accum_steps=2) == 15
    assert compute_num_steps(batches, initial_step=4, max_steps=6, num_steps=100) == 2


class Writer:
    base_step = 10

    def __init__(self) -> None:
        self.seen = list[tuple[str, float, int]]()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.seen.append((name, value, step))

    def add_tensor(self, name: str, tensor: Tensor, step: int) -> None:
        self.seen.append((name, tensor.item(), step))


@pytest.mark.parametrize("summarize", [cstorch.summarize_scalar, cstorch.summarize_tensor])
def test_a_scalar_or_tensor_of_a_step_goes_to_the_writer(summarize: Any) -> None:
    begin()
    cstorch.compile(nn.Linear(2, 2))
    writer = Writer()
    for batch in executor_of([torch.tensor([2.0])], writer=writer):
        summarize("loss", batch)
    assert writer.seen == [("loss", 2.0, 10)]


def test_a_backend_takes_the_memory_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_DEVICE_MEMORY", CAP)
    made = cstorch.backend("CPU", artifact_dir=Path("there"))
    assert made is not None
    assert (made.program.room.device_memory, made.artifact_dir) == (CAP, Path("there"))
