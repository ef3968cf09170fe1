"""Processor time of a step in each style of scripts beside that of the loop below, in turns."""

import argparse
import time
from collections.abc import Callable, Generator
from statistics import median

import torch
from torch import nn

from openwafer.training.frontends import stream_weights
from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.session import cbtorch
from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt

Steps = Generator[float]


def make_model(hidden: int, layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A GPT and its AdamW."""
    torch.manual_seed(0)
    config = GptConfig(
        vocab_size=1024,
        context_length=64,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=4,
        mlp_size=4 * hidden,
    )
    model = ReferenceGpt(config)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def batches(steps: int) -> list[torch.Tensor]:
    """Batches of 4 sequences of 64 tokens."""
    return [torch.randint(0, 1024, (4, 64)) for _ in range(steps)]


def in_loop(args: argparse.Namespace) -> Steps:
    """Steps of a loop of one's own."""
    model, optimizer = make_model(args.hidden, args.layers)
    with stream_weights(model, optimizer, device_memory=args.device_memory):
        for batch in batches(args.steps):
            start = time.process_time()
            optimizer.zero_grad()
            model(batch, labels=batch).loss.backward()
            optimizer.step()
            yield time.process_time() - start


def in_session(args: argparse.Namespace) -> Steps:
    """Steps of a session, whose loader ends each and runs its closure."""
    cbtorch.initialize(device_memory=args.device_memory)
    model, optimizer = make_model(args.hidden, args.layers)
    cbtorch.module(model)
    cbtorch.optimizer(optimizer)
    given = iter(loader := cbtorch.dataloader(batches(args.steps)))
    losses: list[float] = []
    with cbtorch.Session(loader, "train") as session:
        while True:
            start = time.process_time()
            batch = next(given, None)
            if batch is None:
                return
            optimizer.zero_grad()
            loss = model(batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            session.add_step_closure(lambda of: losses.append(of.item()), (loss,))
            yield time.process_time() - start


def in_executor(args: argparse.Namespace) -> Steps:
    """Traced steps of an executor, with a closure for each; by the other two's optimizer."""
    backend = cstorch.backend("CSX", device_memory=args.device_memory)
    model, optimizer = make_model(args.hidden, args.layers)
    assert backend is not None
    backend.take_optimizer(optimizer)
    cstorch.compile(model, backend)
    losses: list[float] = []

    @cstorch.trace
    def training_step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        return loss

    note = cstorch.step_closure(lambda of: losses.append(of.item()))
    loader = cstorch.utils.data.DataLoader(lambda: batches(args.steps))
    given = iter(cstorch.utils.data.DataExecutor(loader))
    while True:
        start = time.process_time()
        batch = next(given, None)
        if batch is None:
            return
        note(training_step(batch))
        yield time.process_time() - start


def measured(
    ways: dict[str, Callable[[argparse.Namespace], Steps]], args: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of each way's steps, one of each in turn; the first plans, and does not count."""
    under_way = {name: way(args) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for step in range(args.steps):
        for name in list(ways)[:: 1 if step % 2 else -1]:
            seconds[name].append(next(under_way[name]))
    for steps in under_way.values():
        steps.close()
    return {name: each[1:] for name, each in seconds.items()}


def main() -> None:
    """Print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device-memory", default="20MiB")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ways = {"loop": in_loop, "session": in_session, "executor": in_executor}
    seconds = measured(ways, args)
    medians = {name: median(each) for name, each in seconds.items()}
    for name, value in medians.items():
        print(f"{name:8} {value * 1e3:8.2f} ms of processor time a step")
    for name in ("session", "executor"):
        print(f"{name} / loop {medians[name] / medians['loop']:.4f}")


if __name__ == "__main__":
    main()
