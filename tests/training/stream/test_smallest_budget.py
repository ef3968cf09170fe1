"""A device budget that is too small: the message names the smallest one that works."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.assemble import Planned
from tests.tables import case
from tests.training.stream.both_loops import STREAMED, Run, plan
from tests.training.stream.small_gpt import gpt_run

Build = Callable[[], nn.Module]


def matrices(*sizes: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


def chain(build: Build, width: int, num_rows: int = 4) -> Run:
    return Run(
        build,
        lambda model: torch.optim.AdamW(model.parameters()),
        lambda generator: torch.randn(num_rows, width, generator=generator),
        lambda model, x: model(x).pow(2).mean(),
        num_steps=1,
    )


RUNS = {
    "gpt": gpt_run(),
    "even": chain(lambda: matrices(96, 96, 96, 96, 96), 96),
    "uneven": chain(lambda: matrices(16, 512, 64, 256, 32), 16),
    "one large": chain(lambda: nn.Sequential(matrices(64, 64, 64), matrices(64, 300, 64)), 64),
    # Inputs between two matrices are large: pairs of them need less, and leave no room for a third.
    "wide inside": chain(lambda: nn.Sequential(*(matrices(16, 64, 16) for _ in range(5))), 16, 8),
}
BY_DEFAULT = ("one large", "wide inside")


def planned_with(run: Run, budget: int) -> Planned:
    return plan(run, replace(STREAMED, min_layer_bytes=1024), budget=budget)


def named(run: Run, budget: int) -> int:
    """The number of bytes that the refusal of a budget names."""
    with pytest.raises(OpenwaferError, match="needs") as raised:
        planned_with(run, budget)
    found = re.search(r"needs ([\d,]+) bytes on the device", str(raised.value))
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("name", [case(name, by_default=name in BY_DEFAULT) for name in RUNS])
def test_the_budget_named_is_the_smallest_that_works(name: str) -> None:
    smallest = named(RUNS[name], 5_000)
    assert planned_with(RUNS[name], smallest).plan.predicted_peak_bytes <= smallest
    assert named(RUNS[name], smallest - 1) == smallest


@pytest.mark.slow
def test_a_layer_is_split_further_where_the_budget_leaves_no_other_way() -> None:
    run = RUNS["one large"]
    smallest = named(run, 5_000)
    coarse = planned_with(run, 10_000_000).plan.split.layers
    assert len(planned_with(run, smallest).plan.split.layers) > len(coarse)
