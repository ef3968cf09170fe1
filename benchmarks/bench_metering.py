"""What it costs to hold a step to its device budget: steps with and without, one after the other.

Seconds are those of the processor on one thread, which other processes leave alone. Without, nobody
works out the kind of a call, counts what it saves, or meters it, but for the passes that are
metered in any case. No run and no loop goes without, so this drives the execution itself.

    python benchmarks/bench_metering.py [--steps 60]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt
from openwafer.training.plan_record import Mode
from openwafer.training.stream.assemble import assemble, plan_run
from openwafer.training.stream.device.device import ALWAYS_METERED
from openwafer.training.stream.execute.activations import Frame
from openwafer.training.stream.execute.execution import Execution, StreamedExecution
from openwafer.training.stream.execute.pass_watch import PassWatch
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.stream_options import PlanInput, StreamOptions


def shape_of(vocab_size: int, context: int, hidden_size: int, num_layers: int) -> GptConfig:
    return GptConfig(
        vocab_size=vocab_size,
        context_length=context,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 64,
        mlp_size=4 * hidden_size,
    )


MODELS = {
    "small, 0.3 M": (shape_of(256, 32, 64, 4), (2, 32)),
    "larger, 5 M": (shape_of(1024, 128, 256, 6), (4, 128)),
}


class Unwatched(PassWatch):
    """Lets every call pass."""

    def meet_beside_others(self, args: object, kwargs: object) -> None:
        """Nothing is met."""

    def begin_layer(self, frame: Frame) -> None:
        """Nothing is followed."""

    def end_layer(self, frame: Frame, visit: int) -> None:
        """Nothing is counted."""


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(tokens, labels=tokens).loss
    return loss


def execution_of(config: GptConfig, tokens: torch.Tensor) -> tuple[nn.Module, Execution]:
    torch.manual_seed(0)
    model = ReferenceGpt(config)
    updater = Updater(torch.optim.AdamW(model.parameters(), fused=True), model)
    options = StreamOptions(device="cpu", mode=Mode.STREAMED)
    given = PlanInput(options, device_memory_bytes=1 << 30)
    planned = plan_run(Workload(model, [tokens], loss_of), updater, given, folder=None)
    return model, assemble(model, replace(planned, updater=updater), folder=None)


def stepper(config: GptConfig, tokens: torch.Tensor, *, is_held: bool) -> Callable[[], float]:
    """A function that makes a step and returns its forward's and backward's seconds."""
    model, execution = execution_of(config, tokens)
    if not is_held:
        assert isinstance(execution, StreamedExecution)
        execution.executor.watch = Unwatched(model, execution.device, execution.executor.weights)

    def step() -> float:
        start = time.process_time()
        execution.run([partial(loss_of, model, tokens)], lambda loss: loss, None)
        seconds = time.process_time() - start
        execution.complete_step(1.0)
        return seconds

    return step


def compare(name: str, num_steps: int) -> None:
    config, shape = MODELS[name]
    tokens = torch.randint(0, config.vocab_size, shape)
    steppers = [stepper(config, tokens, is_held=is_held) for is_held in (True, False)]
    for step in steppers:
        for _ in range(ALWAYS_METERED):
            step()
    pairs = []
    for number in range(num_steps):
        # Either goes first as often, since a step leaves caches behind for the next.
        order = steppers if number % 2 else steppers[::-1]
        seconds = {id(step): step() for step in order}
        pairs.append([seconds[id(step)] for step in steppers])
    held, free = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{name:14} {held * 1e3:9.2f} ms held {free * 1e3:9.2f} ms free  {ratio - 1:+.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    torch.set_num_threads(1)
    steps: int = parser.parse_args().steps
    for name in MODELS:
        compare(name, steps)


if __name__ == "__main__":
    main()
