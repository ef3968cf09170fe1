"""Zeros of experts that nobody used are applied without being kept anywhere."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import StoreOptions
from openwafer.training.store.transfers import DiskTransfer
from openwafer.training.stream.schedule import UpdateTiming
from tests.training.stream.small_link import NUM_RECORDS, SmallLink


@dataclass
class Watched:
    """A link over the slices of one weight, and what its store reads and writes."""

    folder: Path
    timing: UpdateTiming
    transfers: list[DiskTransfer] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = StoreOptions(on_transfer=self.transfers.append)
        self.small = SmallLink(self.folder, self.timing, options=options, is_sliced=True)

    def moved(self, part: Part) -> list[DiskTransfer]:
        self.small.store.drain()
        return [transfer for transfer in self.transfers if transfer.part is part]


@pytest.fixture(params=UpdateTiming)
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(tmp_path, request.param)
    yield made
    made.small.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallLink]:
    """Gradients are kept until their step is complete."""
    made = SmallLink(tmp_path, is_sliced=True)
    yield made
    made.close()


def plain(start: Tensor, *gradients: float) -> Tensor:
    """What torch's own optimizer makes of a weight."""
    weight = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5, fused=True)
    for value in gradients:
        weight.grad = torch.full_like(weight, value)
        optimizer.step()
    return weight.detach()


def is_negative_zero(values: Tensor) -> bool:
    return bool((values == 0).all() and values.signbit().all())


def test_zeros_move_a_weight_that_has_a_momentum(watched: Watched) -> None:
    small = watched.small
    small.push(1, 0.25)
    if watched.timing is UpdateTiming.ON_FETCH:
        small.update()
    small.push_zeros(1)
    if watched.timing is UpdateTiming.ON_FETCH:
        small.update()
    assert torch.equal(small.stored(1), plain(small.weights[1], 0.25, 0.0))


def test_zeros_are_neither_written_nor_read(watched: Watched) -> None:
    for index in range(NUM_RECORDS):
        watched.small.push_zeros(index)
    if watched.timing is UpdateTiming.ON_FETCH:
        watched.small.update()
    assert watched.moved(Part.GRADIENTS) == []
    assert {transfer.kind for transfer in watched.moved(Part.STATES)} == {"write"}


def test_zeros_are_applied_before_the_next_fetch(small: SmallLink) -> None:
    small.push(1, 0.25)
    small.update()
    small.push_zeros(1)
    small.complete_step()
    assert torch.equal(small.fetch(1), plain(small.weights[1], 0.25, 0.0))


def test_what_follows_zeros_is_added_to_them(small: SmallLink) -> None:
    """As in the plain loop, whose zeros turn a negative zero into a positive one."""
    small.push_zeros(1)
    small.push(1, -0.0)
    assert not is_negative_zero(small.kept(1))


def test_zeros_are_added_to_what_is_kept(small: SmallLink) -> None:
    small.push(1, -0.0)
    assert is_negative_zero(small.kept(1))
    small.push_zeros(1)
    assert not is_negative_zero(small.kept(1))


def test_gradients_of_a_step_before_are_not_taken_for_zeros(small: SmallLink) -> None:
    small.push(1, 0.25)
    small.update()
    small.push_zeros(1)
    small.push(1, 0.5)
    small.update()
    assert torch.equal(small.stored(1), plain(small.weights[1], 0.25, 0.5))


def test_zeros_that_are_discarded_are_not_applied(small: SmallLink) -> None:
    small.push_zeros(1)
    small.link.kept.discard()
    small.push(1, 0.25)
    small.update()
    assert torch.equal(small.stored(1), plain(small.weights[1], 0.25))


def test_what_a_watcher_makes_of_zeros_is_applied(small: SmallLink) -> None:
    """Watchers see the whole weight, and may change it."""

    def change(gradients: Mapping[str, Tensor]) -> None:
        gradients["0.weight"][1].fill_(0.5)
        gradients["0.weight"][2].mul_(-1.0)

    small.link.watchers.append(change)
    for index in range(NUM_RECORDS):
        small.push_zeros(index)
    assert is_negative_zero(small.kept(2))
    small.update()
    assert torch.equal(small.stored(1), plain(small.weights[1], 0.5))
