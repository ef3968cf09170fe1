"""Processor time and memory of a step by each front end beside those of the loop below.

Each way has processes of its own, and they take steps in turns: a step is charged with all that
its process computes from its beginning to that of the next one, also in threads behind its end.
Steps of one way differ between its processes by some percent, whatever they run, so several are
taken, and their lowest and highest are told beside the median of all. What needs accelerate or
Lightning is left out where they are not installed.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments

from openwafer.training.frontends import stream_weights
from openwafer.training.frontends.estimator import cs_estimator
from openwafer.training.frontends.hugging_face import StreamedTrainer
from openwafer.training.frontends.official.graph import Argument
from openwafer.training.frontends.official.operators import DTYPES, run_operation
from openwafer.training.frontends.official.runner import GraphRunner
from openwafer.training.frontends.official.text import read_graph
from openwafer.training.frontends.official.visits import is_weight
from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.session import cbtorch
from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt

EndStep = Callable[[], object]
"""Is called behind each step, and returns when the next one is to begin."""


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


def in_loop(args: argparse.Namespace, end_step: EndStep, *, clips: bool = False) -> None:
    """Steps of a loop of one's own."""
    model, optimizer = make_model(args.hidden, args.layers)
    with stream_weights(model, optimizer, device_memory=args.device_memory) as streamed:
        for batch in batches(args.steps):
            optimizer.zero_grad()
            model(batch, labels=batch).loss.backward()
            if clips:
                streamed.clip_grad_norm_(1.0)
            optimizer.step()
            end_step()


def in_session(args: argparse.Namespace, end_step: EndStep) -> None:
    """Steps of a session, whose loader ends each and runs its closure."""
    cbtorch.initialize(device_memory=args.device_memory)
    model, optimizer = make_model(args.hidden, args.layers)
    cbtorch.module(model)
    cbtorch.optimizer(optimizer)
    loader = cbtorch.dataloader(batches(args.steps))
    with cbtorch.Session(loader, "train") as session:
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            session.add_step_closure(lambda of: (of.item(), end_step()), (loss,))


def in_executor(args: argparse.Namespace, end_step: EndStep) -> None:
    """Traced steps of an executor, with a closure for each; by the other two's optimizer."""
    backend = cstorch.backend("CSX", device_memory=args.device_memory)
    model, optimizer = make_model(args.hidden, args.layers)
    assert backend is not None
    backend.take_optimizer(optimizer)
    cstorch.compile(model, backend)

    @cstorch.trace
    def training_step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        return loss

    note = cstorch.step_closure(lambda of: (of.item(), end_step()))
    loader = cstorch.utils.data.DataLoader(lambda: batches(args.steps))
    for batch in cstorch.utils.data.DataExecutor(loader):
        note(training_step(batch))


def in_estimator(args: argparse.Namespace, end_step: EndStep) -> None:
    """Steps of an estimator, which calls its model function each time."""

    def model_fn(features: torch.Tensor, mode: str) -> cs_estimator.EstimatorSpec:
        model, optimizer = make_model(args.hidden, args.layers)
        loss = model(features, labels=features).loss
        return cs_estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer)

    class StepHook(cs_estimator.SessionRunHook):
        def after_run(self, *_: object) -> None:
            end_step()

    with tempfile.TemporaryDirectory() as folder:
        cs_estimator.CerebrasEstimator(model_fn, folder, device_memory=args.device_memory).train(
            lambda: batches(args.steps), [StepHook()]
        )


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


def in_trainer(args: argparse.Namespace, end_step: EndStep) -> None:
    """Steps of the Trainer of transformers, which clips."""
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


def in_lightning(args: argparse.Namespace, end_step: EndStep) -> None:
    """Steps of Lightning's Trainer, which clips."""
    lightning = import_module("lightning.pytorch")
    strategy = import_module("openwafer.training.frontends.lightning").StreamedStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = make_model(args.hidden, args.layers)

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch).loss
            return loss

        def on_train_batch_end(self, *_: object) -> None:
            end_step()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=strategy(args.device_memory),
        max_steps=args.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(samples(args.steps), batch_size=4))


def drawn(arguments: Iterable[Argument]) -> dict[str, torch.Tensor]:
    """Weights and inputs of a graph by their names there: small weights, and tokens 0 and 1."""
    made = dict[str, torch.Tensor]()
    for one in arguments:
        if one.input_name is not None:
            made[one.input_name] = torch.randint(0, 2, one.type.shape).to(DTYPES[one.type.dtype])
        elif is_weight(one) and one.type.dtype == "f32":
            made[str(one.resource)] = torch.randn(one.type.shape) * 0.02
        else:
            made[str(one.resource)] = torch.zeros(one.type.shape, dtype=DTYPES[one.type.dtype])
    return made


def in_official(args: argparse.Namespace, end_step: EndStep) -> None:
    """Steps of a graph that the vendor's packages wrote, as `openwafer official` runs it."""
    graph = read_graph(args.graph.read_text(), str(args.graph))
    values = drawn(graph.arguments)
    with closing(GraphRunner(graph)) as runner:
        for name, _ in graph.resources:
            runner.write(name, values.pop(name))
        for _ in range(args.steps):
            runner.step(values)
            end_step()


def in_graph_loop(args: argparse.Namespace, end_step: EndStep) -> None:
    """The same graph, line by line over tensors that all stay in memory."""
    graph = read_graph(args.graph.read_text(), str(args.graph))
    given = drawn(graph.arguments)
    kept = {one.name: given[one.input_name or str(one.resource)] for one in graph.arguments}
    last = {name: at for at, line in enumerate(graph.operations) for name in line.operands}
    ends = defaultdict[int, list[str]](list)
    for name in last.keys() - set(graph.returned):
        ends[last[name]].append(name)
    for _ in range(args.steps):
        values = dict(kept)
        with torch.no_grad():
            for at, line in enumerate(graph.operations):
                results = run_operation(line, [values[name] for name in line.operands])
                values.update(zip(line.results, results, strict=True))
                for name in ends[at]:
                    del values[name]
            for one in graph.arguments:
                if one.output is not None and graph.returned[one.output] != one.name:
                    kept[one.name].copy_(values[graph.returned[one.output]])
        end_step()


WAYS: Final = {
    "loop": in_loop,
    "session": in_session,
    "executor": in_executor,
    "estimator": in_estimator,
    # These clip, unless they are told otherwise.
    "clipped loop": partial(in_loop, clips=True),
    "trainer": in_trainer,
    "lightning": in_lightning,
    "graph loop": in_graph_loop,
    "official": in_official,
}
NEEDED: Final = {"trainer": "accelerate", "lightning": "lightning"}


class Told(NamedTuple):
    """What a process tells of its way: seconds of each step but the first, and its peak in MiB."""

    seconds: list[float]
    peak_mib: float


def take_steps(way: str, args: argparse.Namespace, parent: Connection) -> None:
    """Take a step of a way whenever the parent says so, and tell at the end what they took."""
    torch.set_num_threads(1)
    beginnings = list[float]()

    def end_step() -> None:
        parent.send(None)
        parent.recv()
        beginnings.append(time.process_time())

    parent.recv()
    WAYS[way](args, end_step)
    seconds = [later - before for before, later in pairwise(beginnings)]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parent.send(Told(seconds, peak_mib))


def measured(ways: list[str], args: argparse.Namespace) -> dict[str, list[Told]]:
    """What the processes of each way tell, one step of each in turn."""
    # Nothing has computed yet, so that there are no threads to lose, and imports are made once.
    context = multiprocessing.get_context("fork")
    children = list[tuple[str, Connection]]()
    for way in ways * args.processes:
        parent, child = context.Pipe()
        context.Process(target=take_steps, args=(way, args, child), daemon=True).start()
        children.append((way, parent))
    for step in range(args.steps):
        for _, parent in children[:: 1 if step % 2 else -1]:
            parent.send(None)
            parent.recv()
    told = defaultdict[str, list[Told]](list)
    for way, parent in children:
        parent.send(None)
        told[way].append(parent.recv())
    return told


def compare(loop: str, others: tuple[str, ...], args: argparse.Namespace) -> None:
    """Print the median and the peak of each way, and what they are beside the loop's."""
    missing = [way for way in others if find_spec(NEEDED.get(way, "torch")) is None]
    for way in missing:
        print(f"{way} is left out: {NEEDED[way]} is not installed")
    told = measured([loop, *(way for way in others if way not in missing)], args)
    loop_seconds = median(chain(*(of.seconds for of in told[loop])))
    loop_peak = median(of.peak_mib for of in told[loop])
    for way, of_processes in told.items():
        seconds = median(chain(*(of.seconds for of in of_processes)))
        medians = [median(of.seconds) / loop_seconds for of in of_processes]
        peak = median(of.peak_mib for of in of_processes)
        print(
            f"{way:12} {seconds * 1e3:8.2f} ms of processor time a step, "
            f"{seconds / loop_seconds:.4f} of the {loop}'s "
            f"({min(medians):.3f} to {max(medians):.3f}); "
            f"peak {peak:.0f} MiB, {peak - loop_peak:+.0f}",
            flush=True,
        )


def main() -> None:
    """Print all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--processes", type=int, default=3, help="of each way")
    parser.add_argument("--device-memory", default="20MiB")
    parser.add_argument(
        "--graph",
        type=Path,
        help="a cirh.mlir to be run line by line, with weights streamed and with all in memory",
    )
    args = parser.parse_args()
    compare("loop", ("session", "executor", "estimator"), args)
    compare("clipped loop", ("trainer", "lightning"), args)
    if args.graph is None:
        print("official is left out: no --graph is given, which needs the vendor's packages")
    else:
        compare("graph loop", ("official",), args)


if __name__ == "__main__":
    main()
