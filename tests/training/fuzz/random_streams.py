"""Random models that are trained with each other, each streamed by itself or plain."""

import random
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Activations
from tests.training.fuzz.random_blocks import BLOCKS, WIDTH
from tests.training.fuzz.random_training import OF_TORCH, OPTIMIZERS, Outcome
from tests.training.stream.both_loops import STREAMED

# Those whose state is that of the last call, so that a refusal of torch's is rare.
KINDS = tuple(sorted(BLOCKS.keys() - {"overwriting"}))


@dataclass(frozen=True)
class Step:
    """One loss over several models, and what is done with it.

    Attributes:
        path: indices of the models that the input goes through.
        cut: the place in the path behind which the graph is cut.
        part: a block of the last model that is called by itself at the end, if any.
        stepping: the models whose optimizers step.
        line: done afterwards.
    """

    path: tuple[int, ...]
    cut: int | None
    part: int | None
    stepping: frozenset[int]
    line: str


@dataclass(frozen=True)
class Streams:
    """Models by their blocks, how each is treated, and the steps.

    Attributes:
        models: names of blocks.
        budgets_kib: of each model; ``None`` is one that stays plain.
    """

    models: tuple[tuple[str, ...], ...]
    budgets_kib: tuple[int | None, ...]
    optimizer: str
    policy: Activations | None
    steps: tuple[Step, ...]


class Model(nn.Module):
    def __init__(self, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BLOCKS[kind]() for kind in kinds)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Group:
    """Models under way."""

    def __init__(self, case: Streams) -> None:
        self.case = case
        self.models = [Model(kinds) for kinds in case.models]
        self.optimizers = [OPTIMIZERS[case.optimizer](model) for model in self.models]
        self.seen: list[Tensor] = []

    def stream(self) -> ExitStack:
        options = replace(STREAMED, default_activations=self.case.policy, min_layer_bytes=1)
        with ExitStack() as streams:
            for model, optimizer, kib in zip(
                self.models, self.optimizers, self.case.budgets_kib, strict=True
            ):
                if kib is not None:
                    streams.enter_context(
                        stream_weights(model, optimizer, device_memory=kib * 1024, options=options)
                    )
            return streams.pop_all()

    def run(self) -> None:
        for number, step in enumerate(self.case.steps):
            torch.manual_seed(number)
            random.seed(number)
            self._backward(step)
            for index in sorted(step.stepping):
                self.optimizers[index].step()
            getattr(self, step.line)(step)
            for optimizer in self.optimizers:
                optimizer.zero_grad()

    def _backward(self, step: Step) -> None:
        x = torch.randn(4, WIDTH)
        for place, index in enumerate(step.path):
            x = self.models[index](x)
            x = x.detach() if place == step.cut else x
        if step.part is not None:
            blocks = self.models[step.path[-1]].blocks
            x = blocks[step.part % len(blocks)](x)
        loss = x.square().mean()
        self.seen.append(loss.detach().clone())
        if loss.requires_grad:
            loss.backward()

    def nothing(self, step: Step) -> None:
        pass

    def average(self, step: Step) -> None:
        with torch.no_grad():
            for one, other in zip(
                self.models[0].parameters(), self.models[-1].parameters(), strict=False
            ):
                if one.shape == other.shape:
                    one.lerp_(other, 0.5)

    def average_states(self, step: Step) -> None:
        source = self.models[step.path[0]].state_dict()
        for name, value in self.models[-1].state_dict().items():
            if name in source and value.shape == source[name].shape and value.is_floating_point():
                value.copy_(value * 0.5 + source[name].to(value.dtype) * 0.5)

    def see_gradients(self, step: Step) -> None:
        for model in self.models:
            self.seen += [p.grad.sum() for p in model.parameters() if p.grad is not None]

    def evaluate(self, step: Step) -> None:
        with torch.no_grad():
            self.seen.append(self.models[step.path[0]](torch.ones(4, WIDTH)).sum())


def train_streams(case: Streams, *, is_streamed: bool) -> Outcome:
    """Run a case to its end, or to a refusal."""
    torch.manual_seed(0)
    random.seed(0)
    group = Group(case)
    try:
        with group.stream() if is_streamed else ExitStack():
            group.run()
    except OpenwaferError as told:
        return Outcome(group.seen, {}, told.diagnostics[0].code, str(told))
    except RuntimeError as told:
        if "modified by an inplace operation" not in str(told):
            raise
        return Outcome(group.seen, {}, OF_TORCH, str(told))
    left = {
        f"{number} {name}": value.clone()
        for number, model in enumerate(group.models)
        for name, value in model.state_dict().items()
    }
    return Outcome(group.seen, left)


LINES = ("nothing", "average", "average_states", "see_gradients", "evaluate")


@st.composite
def streams_cases(draw: st.DrawFn) -> Streams:
    """Two or three models, and few steps."""
    count = draw(st.integers(2, 3))
    blocks = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3).map(tuple)
    indices = st.integers(0, count - 1)
    steps = st.builds(
        Step,
        st.lists(indices, min_size=1, max_size=3).map(tuple),
        st.none() | st.integers(0, 1),
        st.none() | st.integers(0, 2),
        st.frozensets(indices, min_size=1),
        st.sampled_from(LINES),
    )
    return Streams(
        tuple(draw(blocks) for _ in range(count)),
        tuple(draw(st.sampled_from([None, 40, 400])) for _ in range(count)),
        draw(st.sampled_from(sorted(OPTIMIZERS))),
        draw(st.sampled_from([None, *Activations])),
        tuple(draw(st.lists(steps, min_size=2, max_size=4))),
    )
