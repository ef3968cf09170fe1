"""What a PE has room for, and what a program knows of weights that are gone."""

import gc
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.fabric_device import Fabric, FabricOptions
from openwafer.fabric_device.report import Tally
from openwafer.sdk.kernels.precision import Precision, check_range
from openwafer.sdk.kernels.resident_plan import Pass, Weights, plan_resident, with_precision
from openwafer.training.frontends import stream_weights
from openwafer.training.frontends.loop.loop import StreamedLoop
from openwafer.training.plan_record import Activations
from openwafer.training.stream.stream_options import StreamOptions

PLAN = plan_resident((2, 2), 16, 12)


def weights() -> Weights:
    return Weights.of(np.ones((12, 8), np.float32), PLAN, has_bias=True)


def tally_of(*streamed: Weights) -> Tally:
    tally = Tally()
    for one in streamed:
        tally.add("0", Pass("forward", 100, weights=one), PLAN)
    return tally


def test_weights_whose_pattern_changed_are_let_go() -> None:
    first = weights()
    gone, tally = ref(first), tally_of(first, weights())
    del first
    gc.collect()
    assert gone() is None
    assert tally.outlook(PLAN, 1)[0].cycles == 2 * tally_of(weights()).outlook(PLAN, 1)[0].cycles


def test_tokens_for_which_a_pe_has_no_room_have_no_prediction() -> None:
    tally = tally_of(weights())
    own = {one.tokens for one in tally.outlook(PLAN, PLAN.num_panels) if one.rows == 2}
    assert own == {4, 8}
    most = {one.tokens for one in tally.outlook(PLAN, 1) if one.rows == 2}
    assert most == {4, 8, 16, 32, 64, 128}


def test_operands_of_f16_leave_twice_the_room_of_f32() -> None:
    mixed = with_precision(PLAN, "f16-f32")
    wider = replace(mixed, most_features=12 + 2 * 4)
    assert wider.buffer_bytes - mixed.buffer_bytes == 4 * (2 * mixed.tokens * 2 + 2 * 4)


def streamed(model: nn.Module, fabric: Fabric) -> StreamedLoop:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = StreamOptions(min_layer_bytes=1, default_activations=Activations.KEEP, backend=fabric)
    return stream_weights(model, optimizer, device_memory="1MiB", options=options)


def stepped(model: nn.Module, x: torch.Tensor, fabric: Fabric) -> None:
    """Take a step of a loop."""
    with streamed(model, fabric):
        model(x).sum().backward()


def test_a_step_without_room_is_refused_by_its_layer_before_it_runs() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(9)))
    fabric = Fabric(FabricOptions(rows=1, columns=1))
    words = r"64 features of 16 tokens take 4,096 bytes of a PE; what is kept leaves 2,\d+ in one"
    with pytest.raises(OpenwaferError, match=words) as caught:
        stepped(model, torch.ones(16, 64), fabric)
    [found] = caught.value.diagnostics
    assert found.notes == ("layer '6' asks for it",)
    assert "or set activations: recompute" in found.help
    assert fabric.report().memory_bytes == 0


def test_many_different_tokens_without_room_are_warned_of() -> None:
    model = nn.Sequential(nn.Embedding(200, 16), *(nn.Linear(16, 16) for _ in range(3)))
    fabric = Fabric(FabricOptions(rows=1, columns=1))
    ids = torch.zeros(64, dtype=torch.int64)
    # A warning is an error here, so the step does not run.
    with pytest.raises(UserWarning, match="how many different tokens it has: 33,024 bytes of act"):
        stepped(model, ids, fabric)


def small(classes: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, classes))


def entropy(model: nn.Module) -> torch.Tensor:
    return nn.functional.cross_entropy(model(torch.ones(16, 8)), torch.arange(16))


LOSS_LEFT = "torch computes it in host memory: 260 features of 16 tokens take 16,640 bytes"


def test_a_loops_loss_without_room_is_told_before_anything_runs() -> None:
    fabric, model = Fabric(FabricOptions(rows=1, columns=1)), small(260)
    # A warning is an error here, so the step does not run.
    with streamed(model, fabric), pytest.raises(UserWarning, match=LOSS_LEFT):
        model(torch.ones(16, 8))
    assert fabric.report().passes == ()


@pytest.mark.slow
def test_a_loops_loss_without_room_is_torchs() -> None:
    fabric, model = Fabric(FabricOptions(rows=1, columns=1)), small(260)
    with streamed(model, fabric):
        with pytest.warns(UserWarning, match=LOSS_LEFT):
            loss = entropy(model)
        loss.backward()
    assert loss.item() == pytest.approx(entropy(small(260)).item(), rel=1e-5)
    assert fabric.report().copies_off == {"_log_softmax": 1}
    fabric.close()


@pytest.mark.slow
def test_an_evaluations_loss_without_room_leaves_those_of_steps_on_the_wafer() -> None:
    fabric, model = Fabric(FabricOptions(rows=1, columns=1)), small(60)
    with streamed(model, fabric):
        entropy(model).backward()
        with torch.no_grad(), pytest.warns(UserWarning, match="torch computes it in host memory"):
            nn.functional.cross_entropy(model(torch.ones(80, 8)), torch.arange(80) % 60)
        entropy(model).backward()
    assert fabric.report().copies_off == {"cross_entropy": 2, "_log_softmax": 1}
    fabric.close()


def test_a_call_of_more_tokens_is_refused_before_any_of_it_runs_and_the_loop_goes_on() -> None:
    fabric, model = Fabric(FabricOptions(rows=1, columns=1)), small(30)
    with streamed(model, fabric):
        entropy(model).backward()
        before = fabric.report().passes
        with torch.no_grad(), pytest.raises(OpenwaferError, match="300 tokens of 30 features"):
            model(torch.ones(300, 8))
        assert fabric.report().passes == before
        entropy(model).backward()
    assert [one.count for one in fabric.report().passes] == [2 * one.count for one in before]
    fabric.close()


def test_losses_that_are_kept_hold_nothing_behind_their_backward() -> None:
    fabric, model = Fabric(FabricOptions(rows=1, columns=1)), small(30)
    with streamed(model, fabric):
        losses, taken = [], []
        for _ in range(2):
            losses.append(entropy(model))
            losses[-1].backward()
            taken.append(fabric.report().memory_bytes)
    assert losses[0] == losses[1]
    assert taken[0] == taken[1]
    fabric.close()


class Table(nn.Linear):
    """Entries of a table that is no weight, by a linear layer."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("table", torch.tensor([0.0, 0.0, torch.inf]).repeat(8, 1).T)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.embedding(ids, self.table))


def test_what_a_walk_meets_beside_want_of_room_is_an_error() -> None:
    fabric = Fabric(FabricOptions(rows=1, columns=1))
    with pytest.raises(OpenwaferError, match="the embedding's entry of token 2 has values that"):
        stepped(nn.Sequential(Table()), torch.zeros(4, dtype=torch.int64), fabric)


def test_weights_beyond_f16_are_refused_by_their_name() -> None:
    values = np.array([1, -70000, 65504], np.float32)
    with pytest.raises(OpenwaferError, match="1 of the 3 values of a weight of 'head' are beyond"):
        check_range("a weight of 'head'", values, Precision.F16_F32)
    check_range("a weight of 'head'", values, Precision.F32)
    check_range("a weight of 'head'", np.array([np.inf, np.nan], np.float32), Precision.F16_F32)
