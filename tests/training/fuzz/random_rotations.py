"""Random modules whose steps have several micro-batches, which take turns at each layer."""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from tests.training.fuzz.random_blocks import WIDTH, attributes_of
from tests.training.fuzz.random_training import (
    CLASSES,
    OF_TORCH,
    OPTIMIZERS,
    ModelPlan,
    Outcome,
    RandomModel,
    model_plans,
)
from tests.training.stream.both_loops import STREAMED, Run, StreamedRun, plan, train_plainly

BATCH = 4
# Blocks that use a weight once a call. Of others that are called twice, gradients are summed in
# another order, as the design page says.
USED_ONCE = ("averaging", "block", "counting", "dropping", "leaving", "moving", "remembering")


@dataclass(frozen=True)
class Rotation:
    """A model, and how its steps go."""

    model: ModelPlan
    policy: Activations | None
    optimizer: str
    num_micro_batches: int
    clips: bool
    has_autocast: bool


@st.composite
def rotations(draw: st.DrawFn) -> Rotation:
    """A case of two steps."""
    model = draw(model_plans())
    again = tuple(place for place in model.again if model.blocks[place] in USED_ONCE)
    return Rotation(
        replace(model, again=again),
        draw(st.sampled_from([None, *Activations])),
        draw(st.sampled_from(sorted(OPTIMIZERS))),
        draw(st.integers(2, 4)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def train_rotation(case: Rotation, *, is_streamed: bool) -> Outcome:
    """What two steps leave in the model, or why there are none."""
    built: list[nn.Module] = []
    run = _run_of(case, built)
    try:
        left = _streamed(case, run, built) if is_streamed else dict(train_plainly(run))
    except OpenwaferError as told:
        return Outcome([], {}, told.diagnostics[0].code, str(told))
    except RuntimeError as told:
        if "modified by an inplace operation" not in str(told):
            raise
        return Outcome([], {}, OF_TORCH, str(told))
    return Outcome([], left | dict(built[-1].named_buffers()) | attributes_of(built[-1]))


def _run_of(case: Rotation, built: list[nn.Module]) -> Run:
    def build() -> nn.Module:
        torch.manual_seed(0)
        built.append(RandomModel(case.model))
        return built[-1]

    return Run(
        build,
        OPTIMIZERS[case.optimizer],
        lambda generator: torch.randn(BATCH, 1 + WIDTH, generator=generator),
        partial(_loss_of, case.has_autocast),
        num_steps=2,
        num_micro_batches=case.num_micro_batches,
        clip_norm=0.5 if case.clips else None,
    )


def _loss_of(has_autocast: bool, model: nn.Module, batch: Tensor) -> Tensor:
    classes = (batch[:, 0].abs() * 100).long() % CLASSES
    # Of autocast as a run has it: casts are not shared between calls.
    with torch.autocast("cpu", torch.bfloat16, enabled=has_autocast, cache_enabled=False):
        loss: Tensor = model(classes, batch[:, 1:])
    return loss


def _streamed(case: Rotation, run: Run, built: list[nn.Module]) -> dict[str, Tensor]:
    options = replace(STREAMED, default_activations=case.policy, min_layer_bytes=1)
    with closing(StreamedRun(run, plan(run, options))) as streamed:
        built.append(streamed.model)
        for step in range(run.num_steps):
            streamed.step(step)
        return dict(streamed.parameters())
