"""The device budget in a loop of one's own: it holds for calls that the plan did not foresee."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import StreamedLoop, stream_weights
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.execute.pass_watch import Members, call_kind
from tests.training.stream.both_loops import STREAMED, differing

SIZE = 64
CAP = 400_000


class Chain(nn.Module):
    """Six layers that save much and are small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.SiLU(), nn.Tanh()) for _ in range(6)
        )
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def stream(model: nn.Module, cap: int = CAP) -> StreamedLoop:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return stream_weights(model, optimizer, device_memory=cap, options=STREAMED)


def rows(number: int) -> Tensor:
    return torch.randn(number, SIZE, generator=torch.Generator().manual_seed(number))


def execution_of(streamed: StreamedLoop) -> StreamedExecution:
    hooks = streamed._hooks  # noqa: SLF001 - the device has no other way out
    assert hooks is not None
    return hooks.execution


def policies_of(streamed: StreamedLoop) -> set[Activations]:
    return set(execution_of(streamed).executor.policies.values())


def test_a_larger_batch_is_planned_again_with_the_plain_bits() -> None:
    plain, model = Chain(), Chain()
    with stream(model) as streamed:
        for batch in (rows(8), rows(150), rows(8)):
            for one in (plain, model):
                one(batch).backward()
        found = dict(streamed.gradients())
        assert Activations.RECOMPUTE in policies_of(streamed)
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    assert differing(found, expected) == []


def test_a_batch_for_which_there_is_no_room_is_refused_before_it_is_computed() -> None:
    model = Chain()
    with stream(model):
        model(rows(8)).backward()
        calls = model.calls
        with pytest.raises(
            OpenwaferError, match=r"called with .*\(20000, 64\), which takes [\d,]+"
        ):
            model(rows(20_000))
        assert model.calls == calls
        model(rows(8)).backward()


def test_evaluation_of_a_batch_for_which_there_is_no_room_is_refused() -> None:
    model = Chain()
    with stream(model), torch.no_grad():
        with torch.enable_grad():
            model(rows(8)).backward()
        model(rows(300))
        with pytest.raises(OpenwaferError, match="is called with"):
            model(rows(20_000))


def test_graphs_that_wait_for_their_backward_count() -> None:
    model = Chain()
    with stream(model):
        losses = [model(rows(200))]
        with pytest.raises(OpenwaferError, match="graphs of earlier forwards hold"):
            losses.extend(model(rows(200)) for _ in range(4))


def gradients_of(num_forwards: int, cap: int | None) -> dict[str, Tensor]:
    """Gradients of one backward behind several forwards."""
    model = Chain()
    streamed = None if cap is None else stream(model, cap)
    torch.stack([model(rows(200)) for _ in range(num_forwards)]).sum().backward()
    if streamed is None:
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    found = dict(streamed.gradients())
    streamed.close()
    return found


def test_inputs_of_layers_that_run_again_leave_room_for_a_second_forward() -> None:
    assert differing(gradients_of(2, CAP), gradients_of(2, None)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("num_forwards", "cap"), [(2, 330_000), (3, CAP)])
def test_the_budget_that_the_last_forward_is_told_serves_them_all(
    num_forwards: int, cap: int
) -> None:
    with pytest.raises(OpenwaferError, match="graphs of earlier forwards hold") as told:
        gradients_of(num_forwards, cap)
    named = re.search(r"a budget of ([\d,]+) bytes", str(told.value))
    assert named is not None
    found = gradients_of(num_forwards, int(named[1].replace(",", "")))
    assert differing(found, gradients_of(num_forwards, None)) == []


def test_a_kind_of_batch_is_metered_when_it_comes_for_the_first_time() -> None:
    model = Chain()
    with stream(model) as streamed:
        for _ in range(5):
            model(rows(8)).backward()
        device = execution_of(streamed).device
        peaks = []
        for number in (8, 5, 5):
            device.reset_peak()
            model(rows(number)).backward()
            peaks.append(device.peak_bytes is None)
    assert peaks == [True, False, True]


class Growing(Chain):
    """Saves more from the sixth call on, whatever its arguments: so many rows for each of them."""

    def __init__(self, rows_for_each: int) -> None:
        super().__init__()
        self.rows_for_each = rows_for_each

    def forward(self, x: Tensor) -> Tensor:
        grows = self.calls >= 5
        out = super().forward(x)
        more = x.repeat(self.rows_for_each if grows else 1, 1).requires_grad_().exp()
        return out + more.sum() * 0.0


def test_a_model_that_saves_more_than_before_is_metered_from_then_on() -> None:
    model = Growing(10)
    with stream(model) as streamed:
        for _ in range(6):
            model(rows(8)).backward()
        assert execution_of(streamed).executor.watch.depends_on_values


def test_a_model_that_saves_more_than_there_is_room_for_is_refused() -> None:
    model = Growing(1000)
    with stream(model):
        for _ in range(5):
            model(rows(8)).backward()
        with pytest.raises(OpenwaferError, match="bytes more than in passes of the same arguments"):
            model(rows(8))


def test_a_resident_plan_is_left_when_a_batch_does_not_fit_it() -> None:
    plain, model = Chain(), Chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options, modes = replace(STREAMED, mode=None), []
    with stream_weights(model, optimizer, device_memory=1_000_000, options=options) as streamed:
        for batch in (rows(8), rows(300)):
            for one in (plain, model):
                one(batch).backward()
            modes.append(None if streamed.plan is None else streamed.plan.mode)
        found = dict(streamed.gradients())
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    assert differing(found, expected) == []
    assert modes == [Mode.RESIDENT, Mode.STREAMED]


def test_a_call_with_another_number_has_the_form_of_a_planned_one() -> None:
    members, device = Members.of(nn.Linear(2, 2)), torch.device("cpu")
    first, later, larger = (
        call_kind(members, "forward", (rows(size), step), {}, device)
        for size, step in ((4, 1), (4, 2), (5, 1))
    )
    assert later.is_like(first)
    assert not larger.is_like(first)
