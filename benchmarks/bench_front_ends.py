"""Processor time of a step by each front end beside that of the loop below, in turns.

What needs accelerate or Lightning is left out where they are not installed.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Generator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from greenlet import greenlet
from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments

from openwafer.training.frontends import stream_weights
from openwafer.training.frontends.estimator import cs_estimator
from openwafer.training.frontends.hugging_face import StreamedTrainer
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


def in_loop(args: argparse.Namespace, *, clips: bool = False) -> Steps:
    """Steps of a loop of one's own."""
    model, optimizer = make_model(args.hidden, args.layers)
    with stream_weights(model, optimizer, device_memory=args.device_memory) as streamed:
        for batch in batches(args.steps):
            start = time.process_time()
            optimizer.zero_grad()
            model(batch, labels=batch).loss.backward()
            if clips:
                streamed.clip_grad_norm_(1.0)
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


def in_turns(train: Callable[[Callable[[], object]], object]) -> Steps:
    """Steps of a trainer that has a loop of its own, and calls what it is given at each end."""
    worker = greenlet(lambda: train(worker.parent.switch))
    while True:
        start = time.process_time()
        worker.switch()
        if worker.dead:
            return
        yield time.process_time() - start


def in_estimator(args: argparse.Namespace) -> Steps:
    """Steps of an estimator, which calls its model function each time."""

    def model_fn(features: torch.Tensor, mode: str) -> cs_estimator.EstimatorSpec:
        model, optimizer = make_model(args.hidden, args.layers)
        loss = model(features, labels=features).loss
        return cs_estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer)

    def train(end_step: Callable[[], object]) -> None:
        class StepHook(cs_estimator.SessionRunHook):
            def after_run(self, *_: object) -> None:
                end_step()

        with tempfile.TemporaryDirectory() as folder:
            cs_estimator.CerebrasEstimator(
                model_fn, folder, device_memory=args.device_memory
            ).train(lambda: batches(args.steps), [StepHook()])

    return in_turns(train)


def samples(steps: int) -> list[dict[str, torch.Tensor]]:
    """The sequences of the batches, one by one."""
    return [{"input_ids": one, "labels": one} for batch in batches(steps) for one in batch]


class Held(nn.Module):
    """A model without a config, to which a Trainer would write."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return what the model returns."""
        return {"loss": self.model(input_ids, labels=labels).loss}


class StepEnds(TrainerCallback):
    """Calls a function at the end of each step."""

    def __init__(self, end_step: Callable[[], object]) -> None:
        self.end_step = end_step

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Call it."""
        self.end_step()


def in_trainer(args: argparse.Namespace) -> Steps:
    """Steps of the Trainer of transformers, which clips."""

    def train(end_step: Callable[[], object]) -> None:
        model, optimizer = make_model(args.hidden, args.layers)
        with tempfile.TemporaryDirectory() as folder:
            StreamedTrainer(
                Held(model),
                TrainingArguments(
                    folder,
                    use_cpu=True,
                    per_device_train_batch_size=4,
                    max_steps=args.steps,
                    lr_scheduler_type="constant",
                    save_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    remove_unused_columns=False,
                ),
                train_dataset=samples(args.steps),
                optimizers=(optimizer, None),
                callbacks=[StepEnds(end_step)],
                device_memory=args.device_memory,
            ).train()

    return in_turns(train)


def in_lightning(args: argparse.Namespace) -> Steps:
    """Steps of Lightning's Trainer, which clips."""
    lightning = import_module("lightning.pytorch")
    strategy = import_module("openwafer.training.frontends.lightning").StreamedStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, end_step: Callable[[], object]) -> None:
            super().__init__()
            self.model, self.optimizer = make_model(args.hidden, args.layers)
            self.end_step = end_step

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch).loss
            return loss

        def on_train_batch_end(self, *_: object) -> None:
            self.end_step()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

    def train(end_step: Callable[[], object]) -> None:
        trainer = lightning.Trainer(
            accelerator="cpu",
            strategy=strategy(args.device_memory),
            max_steps=args.steps,
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(Module(end_step), DataLoader(samples(args.steps), batch_size=4))

    return in_turns(train)


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
    clipped = partial(in_loop, clips=True)
    ways = {"session": in_session, "executor": in_executor, "estimator": in_estimator}
    compare({"loop": in_loop, **ways}, args)
    # These clip, unless they are told otherwise.
    if find_spec("accelerate") is not None:
        compare({"clipped loop": clipped, "trainer": in_trainer}, args)
    if find_spec("lightning") is not None:
        compare({"clipped loop": clipped, "lightning": in_lightning}, args)


def compare(
    ways: dict[str, Callable[[argparse.Namespace], Steps]], args: argparse.Namespace
) -> None:
    """Print medians, and what they are beside the first."""
    medians = {name: median(each) for name, each in measured(ways, args).items()}
    for name, value in medians.items():
        print(f"{name:12} {value * 1e3:8.2f} ms of processor time a step")
    loop, *others = medians
    for name in others:
        print(f"{name} / {loop} {medians[name] / medians[loop]:.4f}")


if __name__ == "__main__":
    main()
