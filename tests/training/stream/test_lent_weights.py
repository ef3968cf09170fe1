"""A device that is host memory computes on the store's own bytes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.plan_record import Activations
from openwafer.training.store.layout import Part
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.schedule import UpdateTiming
from tests.tables import checkerboard
from tests.training.stream.axes import TIERS
from tests.training.stream.both_loops import (
    STREAMED,
    Run,
    differing,
    on_tier,
    plan,
    train_plainly,
    train_streamed,
)
from tests.training.stream.small_link import WEIGHT_BYTES, SmallLink, fetches

WIDTH = 64


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallLink]:
    made = SmallLink(tmp_path / "store", timing=UpdateTiming.ON_PUSH)
    yield made
    made.close()


def address_in_store(small: SmallLink, index: int) -> int:
    loan = small.store.borrow(str(index), (Part.WEIGHTS,), read_only=True)
    loan.wait()
    address = loan.part_bytes_view(Part.WEIGHTS).data_ptr()
    loan.release()
    return address


def test_a_fetch_without_a_slot_copies_nothing(small: SmallLink) -> None:
    lent = small.lend(1)
    assert lent.data_ptr() == address_in_store(small, 1)


def test_lent_weights_hold_their_room_until_their_release(tmp_path: Path) -> None:
    small = SmallLink(tmp_path / "store", ring_records=1 / 3)
    small.lend(0)
    waiting = small.store.borrow("1", (Part.WEIGHTS,), read_only=True)
    was_ready = waiting.is_ready
    small.link.release("0")
    waiting.wait()
    assert not was_ready
    small.close()


def test_an_update_on_push_leaves_lent_weights_as_they_were(small: SmallLink) -> None:
    lent = small.lend(1)
    small.push(1, 0.25)
    assert torch.equal(lent, small.weights[1])


def test_the_release_of_lent_weights_makes_the_update(small: SmallLink) -> None:
    small.lend(1)
    small.push(1, 0.25)
    small.link.release("1")
    assert torch.equal(small.stored(1), small.weights[1] - 0.25)


def test_a_pass_that_is_abandoned_gives_lent_weights_back(small: SmallLink) -> None:
    small.link.begin_pass(fetches([0, 1]))
    small.lend(0)
    small.push(0, 0.25)
    small.link.abandon()
    small.link.release("0")
    assert torch.equal(small.stored(0), small.weights[0])


def test_a_meter_counts_lent_weights_until_nobody_holds_them(small: SmallLink) -> None:
    device = small.device
    with device.active():
        with device.host_section():
            lent = small.lend(1)
        row = lent[0]
        held = device.used_bytes
        small.link.release("1")
        del lent, row
    assert (held, device.used_bytes) == (WEIGHT_BYTES, 0)


def test_a_slow_link_copies(tmp_path: Path) -> None:
    small = SmallLink(tmp_path / "store", device=CpuDevice(link_bytes_per_second=1e9))
    assert not small.link.lends_memory
    small.close()


class UsesItsWeightTwice(nn.Module):
    """Backward wants the weight once more when its gradient is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)

    def forward(self, x_BF: Tensor) -> Tensor:
        product: Tensor = (x_BF @ self.weight.detach()).tanh() @ self.weight
        return product


def build_stack() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(UsesItsWeightTwice() for _ in range(3)))


def mean_square(model: nn.Module, x_BF: Tensor) -> Tensor:
    out: Tensor = model(x_BF)
    return out.square().mean()


TWICE = Run(
    build=build_stack,
    optimize=lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, fused=True),
    draw=lambda generator: torch.randn(8, WIDTH, generator=generator),
    loss_of=mean_square,
    num_steps=3,
)


@pytest.mark.parametrize(("tier", "activations"), checkerboard(TIERS, Activations))
def test_backward_sees_the_weights_of_its_forward(
    tmp_path: Path, tier: StoreTier, activations: Activations
) -> None:
    options = replace(STREAMED, min_layer_bytes=0, default_activations=activations)
    planned = on_tier(plan(TWICE, options, folder=tmp_path), tier, 200_000)
    streamed = train_streamed(TWICE, planned, folder=tmp_path / "store")
    assert differing(streamed.parameters(), train_plainly(TWICE)) == []
    streamed.close()


def test_an_expert_that_its_code_holds_is_lent_until_it_lets_go(tmp_path: Path) -> None:
    small = SmallLink(tmp_path / "store", ring_records=1 / 3, is_sliced=True)
    held = small.lend(0)
    small.link.release(small.record(0))
    waiting = small.store.borrow(small.record(1), (Part.WEIGHTS,), read_only=True)
    assert torch.equal(held, small.weights[0])
    assert not waiting.is_ready
    del held
    small.link.release(small.record(2))
    waiting.wait()
    small.close()
