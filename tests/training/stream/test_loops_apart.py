"""Systems of a loop that go different ways, or cannot go, are told so on every rank."""

from collections.abc import Callable

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from tests.training.stream import loop_scenes, test_nested_layers
from tests.training.stream.loop_programs import CAP
from tests.training.stream.loop_ranks import LoopRanks
from tests.training.stream.loop_scenes import Begun, Mistake
from tests.training.stream.small_gpt import adamw


def test_a_system_that_does_something_else_is_named_on_all(loop_ranks: LoopRanks) -> None:
    for told in loop_ranks.run(Mistake(loop_scenes.one_backward_more)):
        assert "[ranks-apart]" in told
        assert "does optimizer.step(), rank 1 on host" in told
        assert "does a forward of the model with gradients" in told


def test_a_silent_system_is_named_on_all_others(loop_ranks: LoopRanks) -> None:
    first, _, third = loop_ranks.run(Mistake(loop_scenes.no_step), 3)
    # It waits for rank 0 as long as that waits for rank 1: either may be told first.
    assert "; rank 1 on host" in third or "s for rank 0 on host" in third
    assert "[rank-lost]: rank 0 on host" in first
    assert "to send what it does, where this rank does optimizer.step()" in first
    assert "s for rank 1 on host" in first


ELSEWHERE = {
    "state_dict": (loop_scenes.state_everywhere, "model.state_dict()"),
    "weight": (loop_scenes.weight_everywhere, "the weight 'embedding.weight'"),
    "states": (loop_scenes.states_everywhere, "optimizer.state_dict()"),
    "state": (loop_scenes.state_read, "optimizer.state"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_rank_0_has_is_refused_elsewhere(loop_ranks: LoopRanks, name: str) -> None:
    line, what = ELSEWHERE[name]
    told = loop_ranks.run(Mistake(line))[1]
    assert f"[systems-elsewhere]: {what} is in the parameter store of rank 0 on host" in told
    assert "do this on rank 0 only: if streamed.rank == 0" in told


def test_a_gradient_that_one_system_reads_is_refused_on_all(loop_ranks: LoopRanks) -> None:
    for told in loop_ranks.run(Mistake(loop_scenes.gradient_on_one)):
        assert "does a read of the gradient of 'embedding.weight', rank 1" in told
        assert "streamed.alone()" in told


def test_another_tensor_for_a_gradient_is_refused(loop_ranks: LoopRanks) -> None:
    for told in loop_ranks.run(Mistake(loop_scenes.gradient_set)):
        assert "[systems-gradient-set]: embedding.weight.grad was given another tensor" in told


def test_a_step_that_one_system_refuses_is_refused_by_all(loop_ranks: LoopRanks) -> None:
    first, second = loop_ranks.run(Mistake(loop_scenes.swapped_on_one))
    assert "[parameter-swapped]" in second
    assert "[ranks-refuse]: rank 1 on host" in first
    assert "refuses optimizer.step(), so that no rank does it" in first


REFUSED: dict[str, tuple[Callable[[], None], str]] = {
    "models": (Begun(loop_scenes.wider_on_rank_1), "[systems-models]: the parameter '1.weight' is"),
    "state": (Begun(loop_scenes.with_batch_norm), "[systems-share-state]"),
    "nested": (
        Begun(test_nested_layers.build, memory="4MiB"),
        "[systems-nested]: '0' has layers inside",
    ),
    "resident": (
        Begun(loop_scenes.of_linear_layers, loop_scenes.RESIDENT),
        "[systems-resident]",
    ),
    "device": (Begun(loop_scenes.of_linear_layers, loop_scenes.ON_CUDA), "[systems-device]"),
    "wrapped": (loop_scenes.wrapped, "[systems-wrapped]: the model runs inside"),
    "unsaid": (loop_scenes.unsaid, 'systems="all" trains one model on all of them'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_several_systems_cannot_train_is_refused(loop_ranks: LoopRanks, name: str) -> None:
    program, expected = REFUSED[name]
    found = loop_ranks.run(program)
    assert any(expected in told for told in found)
    assert all("[" in told for told in found)


def test_each_process_may_train_a_model_of_its_own(loop_ranks: LoopRanks) -> None:
    first, second = loop_ranks.run(loop_scenes.by_itself)
    assert not torch.equal(first["0.weight"], second["0.weight"])


def test_a_process_without_a_launcher_is_alone() -> None:
    model = loop_scenes.of_linear_layers()
    with pytest.raises(OpenwaferError, match="start the program by torchrun"):
        stream_weights(model, adamw(model), device_memory=CAP, systems="all")
