"""One model on one and two processes, each pinned to a core: openwafer beside other programs.

Weak scaling: each process has as many micro-batches on two as on one. Beside it, the same global
batch on one and two: whether losses agree to the bit. Programs take turns; figures are medians.
``apart`` are two plain loops at once that know nothing of each other: what two cores of the machine
take from each other, which no program can avoid. DeepSpeed has to be installed by hand; see
``loop_of_deepspeed.py``.

    python benchmarks/bench_systems.py --rounds 3
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from openwafer.config import load
from openwafer.training.data import TokenDataset, prepare
from openwafer.training.metrics import METRICS_FORMAT, read_lines
from openwafer.training.models import build
from openwafer.training.models.build import with_vocab_size
from openwafer.training.session import RunConfig, Session, Systems, follow
from openwafer.training.session.building import tokenizer_of

CONFIG = """
steps: {steps}
name: run
folder: {folder}
data:
  source: {{kind: standard-library}}
  tokenizer: {{vocab_size: 4096}}
  folder: {folder}/tokens
model: {{hidden_size: {hidden}, num_layers: {layers}, num_heads: 8, mlp_size: {mlp},
  context_length: 256, dropout: 0.0}}
batch: {{size: {size}, sequence_length: 256, micro_batches: {micro_batches}}}
streaming: {{mode: streamed, store: dram, device: cpu}}
checkpoint: {{at_end: false}}
trace_steps: []
"""
NUM_WARM_UP = 2
KINDS = ("openwafer", "fsdp2", "ddp", "apart")
KINDS_BY_NAME = (*KINDS, "deepspeed")
SAMPLES = 4
PORT = 29561


def config_text(options: argparse.Namespace, folder: Path, num_micro_batches: int) -> str:
    return CONFIG.format(
        steps=options.steps,
        folder=folder,
        hidden=options.hidden,
        mlp=4 * options.hidden,
        layers=options.layers,
        size=SAMPLES * num_micro_batches,
        micro_batches=num_micro_batches,
    )


def run(kind: str, config: Path, size: int) -> dict[str, Any]:
    """What the first process of a run found, with the peak memory of all."""
    command = [sys.executable, __file__, "--as", kind, "--config", str(config)]
    if kind == "deepspeed":
        command = [
            sys.executable,
            str(Path(__file__).with_name("loop_of_deepspeed.py")),
            str(config),
        ]
    is_apart = kind == "apart"
    started = [
        subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "WORLD_SIZE": str(1 if is_apart else size),
                "RANK": str(0 if is_apart else core),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(PORT + core * is_apart),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in range(size)
    ]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    return {**found[0], "peaks": [one["peak"] for one in found]}


def of_openwafer(config: RunConfig) -> tuple[list[float], list[float]]:
    """Seconds and losses of the steps."""
    systems = Systems.launched() if int(os.environ["WORLD_SIZE"]) > 1 else None
    if systems is not None and not systems.is_leader:
        follow(systems)
        return [], []
    Session(config, console=Console(quiet=True), systems=systems).train()
    rows = read_lines(config.path / "metrics.jsonl", METRICS_FORMAT).rows
    return [row.seconds for row in rows], [row.loss for row in rows]


def dataset_of(config: RunConfig) -> TokenDataset:
    """The tokens of a run."""
    assert config.data.folder is not None
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    return prepare(preparation, config.data.folder)


def build_model(config: RunConfig, dataset: TokenDataset) -> nn.Module:
    """The model of a run, in memory."""
    return build(with_vocab_size(config.model, dataset.tokenizer.vocab_size), config.seed)


def peak_bytes() -> int:
    """Of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def of_loop(kind: str, config: RunConfig) -> tuple[list[float], list[float]]:
    """The same of a loop under FSDP2, DDP or alone."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    dataset = dataset_of(config)
    model, syncs = _distributed(kind, build_model(config, dataset))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.learning_rate)
    count = config.batch.num_micro_batches // size
    seconds, losses = [], []
    for step in range(config.steps):
        start = time.perf_counter()
        batches = dataset.micro_batches(
            step, config.batch.num_micro_batches, range(rank * count, (rank + 1) * count)
        )
        total = torch.zeros(())
        for index, batch in enumerate(batches):
            syncs(index == count - 1)
            loss = model(input_ids=batch.input_ids, labels=batch.labels).loss / count
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        seconds.append(time.perf_counter() - start)
        losses.append(total.item() / size)
    dist.destroy_process_group()
    return seconds, losses


def _distributed(kind: str, model: nn.Module) -> tuple[nn.Module, Callable[[bool], None]]:
    if kind == "fsdp2":
        for layer in model.get_submodule("layers").children():
            fully_shard(layer)
        sharded: Any = fully_shard(model)
        return sharded, sharded.set_requires_gradient_sync
    if kind == "apart":
        return model, lambda is_last: None
    wrapped = DistributedDataParallel(model)

    def sync(is_last: bool) -> None:
        wrapped.require_backward_grad_sync = is_last

    return wrapped, sync


def work(kind: str, path: Path) -> None:
    """One process of a run; prints what it found."""
    config = load(path, RunConfig)
    seconds, losses = of_openwafer(config) if kind == "openwafer" else of_loop(kind, config)
    print(json.dumps({"seconds": seconds, "losses": losses, "peak": peak_bytes()}))


def sizes_of(kind: str, count: int) -> list[tuple[int, int]]:
    """Processes and micro-batches: one process, then two, the last with twice as much work."""
    if kind == "apart":
        # Each has a step of its own.
        return [(1, count), (2, count)]
    return [(1, count), (2, count), (2, 2 * count)]


def rounds(options: argparse.Namespace) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """Kind, processes, micro-batches, and what was found, in turns."""
    for _ in range(options.rounds):
        for kind in options.kinds:
            for size, count in sizes_of(kind, options.count):
                with TemporaryDirectory() as scratch:
                    config = Path(scratch, "run.yaml")
                    text = config_text(options, Path(scratch), count)
                    tokens = f"{scratch}/tokens"
                    config.write_text(text.replace(tokens, str(options.tokens)))
                    yield kind, size, count, run(kind, config, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as", dest="kind", choices=KINDS)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS_BY_NAME)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--count", type=int, default=2, help="micro-batches of a process")
    options = parser.parse_args()
    if options.kind:
        work(options.kind, options.config)
        return
    with TemporaryDirectory() as tokens:
        options.tokens = tokens
        found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
        for kind, size, count, result in rounds(options):
            found.setdefault((kind, size, count), []).append(result)
            shown = median(result["seconds"][NUM_WARM_UP:])
            print(f"{kind}, {size} processes, {count} micro-batches: {shown:.3f} s", flush=True)
    for kind in options.kinds:
        show(kind, options.count, found)


def show(kind: str, count: int, found: dict[tuple[str, int, int], list[dict[str, Any]]]) -> None:
    """Print a kind's figures."""
    keys = [(kind, *size) for size in sizes_of(kind, count)]
    seconds = [
        median(second for run in found[key] for second in run["seconds"][NUM_WARM_UP:])
        for key in keys
    ]
    peaks = [max(run["peaks"][rank] for run in found[keys[-1]]) / 2**20 for rank in range(2)]
    # Those of one step, on one process and on two.
    losses = {tuple(run["losses"]) for key in keys[:2] for run in found[key]}
    print(
        f"{kind:10} 1 process {seconds[0]:.3f} s, 2 with the same batch {seconds[1]:.3f} s, "
        f"2 with twice the work {seconds[-1]:.3f} s: weak scaling {seconds[0] / seconds[-1]:.3f}; "
        f"peaks {peaks[0]:.0f} and {peaks[1]:.0f} MiB; "
        f"losses of 1 and 2 {'equal' if len(losses) == 1 else 'differ'}"
    )


if __name__ == "__main__":
    main()
