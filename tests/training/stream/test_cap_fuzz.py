"""Random models, batches and budgets: no step holds more than its device budget.

The bytes are counted here by other means than the product's meter: a mode over the whole step sums
the storages that operators made and that are alive, and the weights that parameters have.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from openwafer.training.stream.execute.execution import StreamedExecution
from tests.training.stream.both_loops import STREAMED, Run, StreamedRun, plan

NUM_CASES, NUM_SLOW_CASES = 1, 500
# Calls of a loop that computes a loss of its own were above their budgets.
FOUND = (192, 323)
# Scalars of the optimizer on the host, which the oracle cannot tell from the device's.
SLACK_BYTES = 256
REFUSALS = ("batch-larger-than-planned", "device-budget-exceeded")
NO_END = 1 << 60


class Oracle(TorchDispatchMode):
    """Bytes of what operators have made since it was entered, and of weights that are there."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._parameters = list(model.parameters())
        self._made: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if isinstance(tensor, Tensor) and not func.is_view:
                self._note(tensor.untyped_storage(), args)
        return out

    def _note(self, storage: torch.UntypedStorage, args: Sequence[Any]) -> None:
        if storage.device.type == "meta":
            return
        address = storage.data_ptr()
        written = [one.untyped_storage().data_ptr() for one in args if isinstance(one, Tensor)]
        if not address or address in written:
            return
        self._made[address] = weakref.ref(storage), storage.nbytes()
        self._made = {key: one for key, one in self._made.items() if one[0]() is not None}
        held = sum(num_bytes for _, num_bytes in self._made.values()) + self._weight_bytes()
        self.peak_bytes = max(self.peak_bytes, held)

    def _weight_bytes(self) -> int:
        storages = [(one.untyped_storage(), one.nbytes) for one in self._parameters]
        return sum(
            num_bytes
            for storage, num_bytes in storages
            if storage.nbytes() >= num_bytes and storage.data_ptr() not in self._made
        )


@dataclass
class Case:
    """A model, its batches and its budget, drawn by a seed."""

    seed: int
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.size = self.random.choice((24, 48, 96))
        self.is_attentive = self.random.random() < 0.4
        self.kinds = [
            self.random.choices((nn.GELU, nn.Tanh, nn.SiLU, Doubled), k=self.random.randint(1, 3))
            for _ in range(self.random.randint(2, 6))
        ]

    def build(self) -> nn.Module:
        torch.manual_seed(self.seed)
        blocks = [nn.Sequential(*self._block(kinds)) for kinds in self.kinds]
        return nn.Sequential(nn.Sequential(*blocks), nn.LayerNorm(self.size))

    def _block(self, kinds: Sequence[Callable[[], nn.Module]]) -> list[nn.Module]:
        first = Attentive(self.size) if self.is_attentive else nn.Linear(self.size, self.size)
        return [first, *(kind() for kind in kinds), nn.Linear(self.size, self.size)]

    def batch(self, generator: torch.Generator) -> Tensor:
        shape = torch.randint(1, 40, (2,), generator=generator).tolist()
        return torch.randn(*shape, self.size, generator=generator)

    def run(self) -> Run:
        return Run(
            self.build,
            lambda model: torch.optim.AdamW(model.parameters(), fused=True),
            self.batch,
            lambda model, x: model(x).pow(2).mean(),
            num_steps=6,
        )


class Doubled(nn.Module):
    """Takes twice the memory of its output for a moment."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.sin()], dim=-1).relu().chunk(2, dim=-1)[0] + x


class Attentive(nn.Module):
    """Memory that grows with the square of the second dim."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mix = nn.Linear(size, 2 * size)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.mix(x).chunk(2, dim=-1)
        mixed: Tensor = torch.softmax(query @ key.transpose(-1, -2), dim=-1) @ x
        return mixed


def peaks_of(case: Case) -> tuple[int, list[int]]:
    """The budget and the oracle's peak of every call that was not refused."""
    run = case.run()
    policy = case.random.choice((Activations.KEEP, Activations.RECOMPUTE, None))
    options = replace(STREAMED, min_layer_bytes=1024, default_activations=policy)
    free = plan(run, options)
    budget = int(free.plan.predicted_peak_bytes * case.random.uniform(0.7, 1.6))
    with suppress(OpenwaferError):
        streamed = StreamedRun(run, plan(run, options, budget=budget))
        peaks = [peak for step in range(run.num_steps) for peak in calls_of(case, streamed, step)]
        streamed.close()
        return budget, peaks
    return budget, []


def calls_of(case: Case, streamed: StreamedRun, step: int) -> list[int]:
    """Peaks of one step: as a session makes it, as a loop does, or a loop's evaluation."""
    batch, execution = streamed.run.batch(step, 0), streamed.execution
    assert isinstance(execution, StreamedExecution)
    way = case.random.choice(("session", "loop", "evaluation"))
    oracle = Oracle(streamed.model)
    try:
        with oracle:
            if way == "session":
                forward = lambda: streamed.run.loss_of(streamed.model, batch)  # noqa: E731
                execution.run([forward], lambda loss: loss, None)
            elif way == "loop":
                streamed.run.loss_of(streamed.model, batch).backward()
            else:
                with torch.no_grad():
                    streamed.model(batch)
    except OpenwaferError as refused:
        # An evaluation may be refused by the meter, in the middle.
        return [] if refused.diagnostics[0].code in REFUSALS else [NO_END]
    if way != "evaluation":
        execution.complete_step(1.0)
    # What is offloaded lies in host memory, which the oracle cannot tell from the device's.
    is_offloading = Activations.OFFLOAD in execution.executor.policies.values()
    return [] if is_offloading else [oracle.peak_bytes]


def above(seeds: Iterable[int]) -> tuple[list[tuple[int, int, int]], int]:
    """Seed, budget and peak of calls above their budget, and how many calls there were."""
    found, number = [], 0
    for seed in seeds:
        budget, peaks = peaks_of(Case(seed))
        number += len(peaks)
        found += [(seed, budget, peak) for peak in peaks if peak > budget + SLACK_BYTES]
    return found, number


def test_no_call_is_above_its_budget() -> None:
    found, number = above((*range(NUM_CASES), *FOUND))
    assert found == []
    assert number > NUM_CASES


@pytest.mark.slow
def test_no_call_of_many_models_is_above_its_budget() -> None:
    found, number = above(range(NUM_CASES, NUM_SLOW_CASES))
    assert found == []
    assert number > NUM_SLOW_CASES
