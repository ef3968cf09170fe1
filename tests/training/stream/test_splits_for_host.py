"""Records that are too large to be updated in host memory are split."""

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.plan.placement import StoreTier, update_bytes
from tests.training.stream.both_loops import (
    STREAMED,
    Run,
    differing,
    plan,
    train_plainly,
    train_streamed,
)

WIDTH = 64
# Room for the weights and states of one matrix, and not for those of three.
HOST_BYTES = 100_000
TOO_FEW_BYTES = 40_000


def blocks() -> nn.Module:
    torch.manual_seed(0)
    block = [nn.Linear(a, b) for a, b in pairwise([WIDTH] * 4)]
    return nn.ModuleDict({"blocks": nn.ModuleList([nn.Sequential(*block)])})


RUN = Run(
    blocks,
    lambda model: torch.optim.AdamW(model.parameters()),
    lambda generator: torch.randn(4, WIDTH, generator=generator),
    lambda model, x: model.get_submodule("blocks.0")(x).pow(2).mean(),
    num_steps=2,
)


def planned_with(host_memory_bytes: int, folder: Path) -> Planned:
    options = replace(STREAMED, tier=StoreTier.DISK, host_memory_bytes=host_memory_bytes)
    return plan(RUN, options, folder=folder)


def test_a_layer_stays_whole_where_it_can_be_updated(tmp_path: Path) -> None:
    assert list(planned_with(1 << 20, tmp_path).plan.layouts) == ["blocks.0"]


def test_a_layer_too_large_for_host_memory_is_split_into_its_children(tmp_path: Path) -> None:
    layouts = planned_with(HOST_BYTES, tmp_path).plan.layouts
    assert list(layouts) == ["blocks.0.0", "blocks.0.1", "blocks.0.2"]
    assert max(map(update_bytes, layouts.values())) <= HOST_BYTES


def test_a_layer_that_was_split_trains_to_the_bits_of_the_plain_loop(tmp_path: Path) -> None:
    streamed = train_streamed(RUN, planned_with(HOST_BYTES, tmp_path), folder=tmp_path)
    with closing(streamed):
        assert not differing(streamed.parameters(), train_plainly(RUN))


def test_a_record_that_cannot_be_split_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"needs [\d,]+ bytes of host memory") as raised:
        planned_with(TOO_FEW_BYTES, tmp_path)
    assert "the store may use 40,000 bytes" in str(raised.value)
    assert "raise streaming.host_memory" in str(raised.value)


def test_a_refusal_for_host_memory_comes_before_any_search(tmp_path: Path) -> None:
    unplannable = replace(RUN, loss_of=lambda model, x: pytest.fail("the model was run"))
    options = replace(STREAMED, tier=StoreTier.DISK, host_memory_bytes=TOO_FEW_BYTES)
    with pytest.raises(OpenwaferError, match="cannot be split further"):
        plan(unplannable, options, folder=tmp_path)
