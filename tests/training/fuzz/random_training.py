"""Random modules in random loops, drawn by Hypothesis and trained plainly or streamed."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Activations
from tests.training.fuzz.random_blocks import BLOCKS, WIDTH, Leaving, attributes_of
from tests.training.fuzz.unusual_blocks import UNUSUAL
from tests.training.stream.both_loops import STREAMED

CLASSES = 5
KINDS = BLOCKS | UNUSUAL
OF_TORCH = "refused by torch"


@dataclass(frozen=True)
class ModelPlan:
    """A model: blocks, what they share, and how they are called.

    Attributes:
        blocks: kinds, by name.
        shared: pairs of blocks of which the second has the first's ``down`` weight.
        again: blocks that are called once more at the end.
        collects: whether a list of all outputs is handed from block to block.
        is_tied: whether the head is the embedding.
    """

    blocks: tuple[str, ...]
    shared: tuple[tuple[int, int], ...]
    again: tuple[int, ...]
    collects: bool
    is_tied: bool


@dataclass(frozen=True)
class LoopPlan:
    """A loop: an optimizer, and what it does in each step.

    Attributes:
        steps: the lines of each step, by name.
        optimizer: by name.
        has_autocast: whether forwards run under bf16 autocast.
    """

    steps: tuple[tuple[str, ...], ...]
    optimizer: str
    has_autocast: bool


@dataclass(frozen=True)
class Case:
    """A model, a loop, and how the streamed one is treated."""

    model: ModelPlan
    loop: LoopPlan
    policy: Activations | None
    device_kib: int


class RandomModel(nn.Module):
    """Classifies rows of numbers through the blocks of a plan."""

    def __init__(self, plan: ModelPlan) -> None:
        super().__init__()
        self.plan = plan
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(KINDS[kind]() for kind in plan.blocks)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        for first, second in plan.shared:
            one, other = (getattr(self.blocks[place], "down", None) for place in (first, second))
            if one is not None and other is not None and one.weight.requires_grad:
                other.weight = one.weight
        if plan.is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, classes: Tensor, x: Tensor) -> Tensor:
        x = x + self.embedding(classes)
        outputs = [x]
        for block in (*self.blocks, *(self.blocks[place] for place in self.plan.again)):
            x = block(sum(outputs) / len(outputs) if self.plan.collects else x)
            outputs.append(x)
        loss = functional_loss(self.head(x), classes)
        for block in self.blocks:
            if isinstance(block, Leaving) and block.own_loss is not None:
                loss = loss + 0.1 * block.own_loss
        return loss


def functional_loss(logits: Tensor, classes: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), classes)


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    # Its fused kernels know no complex weights.
    "adamw": lambda model: torch.optim.AdamW(
        model.parameters(), lr=1e-2, fused=not any(p.is_complex() for p in model.parameters())
    ),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3),
}


@dataclass
class Loop:
    """One loop under way, plain or streamed."""

    model: RandomModel
    optimizer: Optimizer
    has_autocast: bool
    number: int = 0
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def loss(self) -> Tensor:
        self.number += 1
        torch.manual_seed(self.number)
        random.seed(self.number)
        classes, x = torch.randint(0, CLASSES, (4,)), torch.randn(4, WIDTH)
        with torch.autocast("cpu", torch.bfloat16) if self.has_autocast else nullcontext():
            loss: Tensor = self.model(classes, x)
        self.seen.append(loss.detach().clone())
        return loss

    def do(self, line: str) -> None:
        getattr(self, line)()

    def end(self) -> None:
        """The loop is over; what it still holds may be looked at."""

    def backward(self) -> None:
        self.loss().backward()

    def backward_of_two(self) -> None:
        (self.loss() + 0.5 * self.loss()).backward()

    def backward_twice(self) -> None:
        loss = self.loss()
        loss.backward(retain_graph=True)
        loss.backward()

    def forward_only(self) -> None:
        self.loss()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.loss()
        self.model.train()

    def clip(self) -> None:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.seen.append(norm.clone())

    @property
    def _real(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad and not p.is_complex()]

    def clip_values(self) -> None:
        # Torch has no order of complex numbers.
        nn.utils.clip_grad_value_(self._real, 0.05)

    def read_norms(self) -> None:
        self.seen += [p.detach().norm() for p in self.model.parameters()]

    def read_gradients(self) -> None:
        self.seen += [p.grad.abs().sum() for p in self.model.parameters() if p.grad is not None]

    def shrink(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.99)

    def exchange_data(self) -> None:
        parameter = next(self.model.parameters())
        parameter.data = parameter.data * 0.5

    def penalise(self) -> None:
        penalty: Tensor = 0.01 * torch.stack([p.square().sum() for p in self._real]).sum()
        penalty.backward()

    def fail(self) -> None:
        self._stopped(self.model.blocks[-1].register_forward_pre_hook(_stop), self.loss)

    def _stopped(self, handle: RemovableHandle, call: Callable[[], object]) -> None:
        """Make a call while a hook that raises is there, which is taken off afterwards."""
        try:
            call()
        except ZeroDivisionError:
            self.seen.append(torch.tensor(1.0))
        handle.remove()

    def fail_behind_a_block(self) -> None:
        self._stopped(self.model.blocks[-1].register_forward_hook(_stop), self.loss)

    def fail_at_a_gradient(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self._stopped(trained[len(trained) // 2].register_hook(_stop), self.backward)

    def fail_before_the_step(self) -> None:
        self._stopped(self.optimizer.register_step_pre_hook(_stop), self.optimizer.step)

    def fail_behind_the_step(self) -> None:
        self._stopped(self.optimizer.register_step_post_hook(_stop), self.optimizer.step)

    def fail_in_a_closure(self) -> None:
        try:
            self.optimizer.step(_stop)
        except ZeroDivisionError:
            self.seen.append(torch.tensor(1.0))

    def save_and_load(self) -> None:
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer_state = self.optimizer.state_dict()
        self.model.load_state_dict(state)
        self.optimizer.load_state_dict(optimizer_state)

    def step(self) -> None:
        self.optimizer.step()
        self.schedule.step()

    def zero(self) -> None:
        self.optimizer.zero_grad()

    def zero_in_place(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)


def _stop(*_: object) -> Any:
    raise ZeroDivisionError


@dataclass(frozen=True)
class Outcome:
    """What a loop saw and left; ``refusal`` where it was told that something cannot be."""

    seen: list[Tensor]
    left: dict[str, Any]
    refusal: str | None = None
    told: str = ""


def train(case: Case, *, is_streamed: bool, kind: type[Loop] = Loop) -> Outcome:
    """Run a case's loop to its end, or to a refusal."""
    torch.manual_seed(0)
    random.seed(0)
    model = RandomModel(case.model)
    loop = kind(model, OPTIMIZERS[case.loop.optimizer](model), case.loop.has_autocast)
    try:
        with _streaming(case, loop) if is_streamed else nullcontext():
            for lines in case.loop.steps:
                for line in lines:
                    loop.do(line)
    except OpenwaferError as told:
        return Outcome(loop.seen, {}, told.diagnostics[0].code, str(told))
    except RuntimeError as told:
        if "modified by an inplace operation" not in str(told):
            raise
        return Outcome(loop.seen, {}, OF_TORCH, str(told))
    loop.end()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    moments = loop.optimizer.state_dict()["state"]
    states = {f"{n} {name}": value for n, held in moments.items() for name, value in held.items()}
    return Outcome(loop.seen, {**state, **attributes_of(model), **states})


def _streaming(case: Case, loop: Loop) -> AbstractContextManager[object]:
    options = replace(STREAMED, default_activations=case.policy, min_layer_bytes=1)
    budget = case.device_kib * 1024
    return stream_weights(loop.model, loop.optimizer, device_memory=budget, options=options)


BACKWARDS = ("backward", "backward", "backward_of_two", "backward_twice")
BESIDE = ("forward_only", "evaluate", "fail", "read_norms", "shrink", "save_and_load")
ON_GRADIENTS = (*("clip", "clip_values", "read_gradients", "penalise", "backward"),)
UNUSUAL_LINES = (
    *("fail_behind_a_block", "fail_at_a_gradient"),
    *("fail_before_the_step", "fail_behind_the_step", "fail_in_a_closure"),
)
ENDS = (("step", "zero"), ("step", "zero"), ("zero",), ("step", "zero_in_place"))


@st.composite
def step_plans(draw: st.DrawFn, *, is_unusual: bool = False) -> tuple[str, ...]:
    """The lines of one step."""
    lines = [*draw(st.lists(st.sampled_from(BESIDE), max_size=1))]
    lines.append(draw(st.sampled_from(BACKWARDS)))
    lines += draw(
        st.lists(
            st.sampled_from(ON_GRADIENTS + UNUSUAL_LINES * is_unusual), max_size=2, unique=True
        )
    )
    lines += draw(st.sampled_from(ENDS))
    lines += draw(st.lists(st.sampled_from(("exchange_data", "evaluate")), max_size=1))
    return tuple(lines)


@st.composite
def model_plans(draw: st.DrawFn, *, is_unusual: bool = False) -> ModelPlan:
    """A model of few blocks, so that what fails can be read."""
    kinds = st.sampled_from(sorted(BLOCKS))
    if is_unusual:
        # As many of these as of the others, which are more kinds.
        kinds |= st.sampled_from(sorted(UNUSUAL))
    blocks = tuple(draw(st.lists(kinds, min_size=2, max_size=4)))
    places = st.integers(0, len(blocks) - 1)
    return ModelPlan(
        blocks,
        tuple(draw(st.lists(st.tuples(places, places), max_size=1))),
        tuple(draw(st.lists(places, max_size=1))),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@st.composite
def cases(draw: st.DrawFn, *, is_unusual: bool = False) -> Case:
    """A case of few steps, whose blocks and lines may be unusual ones."""
    model = draw(model_plans(is_unusual=is_unusual))
    loop = LoopPlan(
        tuple(draw(st.lists(step_plans(is_unusual=is_unusual), min_size=2, max_size=4))),
        draw(st.sampled_from(sorted(OPTIMIZERS))),
        draw(st.booleans()),
    )
    policy = draw(st.sampled_from([None, *Activations]))
    return Case(model, loop, policy, draw(st.sampled_from([64, 400])))
