"""What a step takes beside its compute: the model is so small that nearly all of it is Python.

A run whose store is in memory, one whose store is on disk, an own loop, and the plain loop that
they are compared with. All clip by a norm that they do not reach, as most steps of most runs. The
table has medians of steady steps, in milliseconds of wall and processor time.

    python benchmarks/bench_step.py [--steps 60] [--rounds 3] [--profile WAY]

With `--profile`, one of the ways runs alone and its dearest functions are printed.
"""

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from walks import TINY

from openwafer import stream_weights
from openwafer.training.data import DataSource, SourceKind
from openwafer.training.data.tokenizer import TokenizerTraining
from openwafer.training.models.build import build, with_vocab_size
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    StreamingConfig,
    TokensConfig,
)
from openwafer.training.session.run import Saver, opened, run_step
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.store import StoreOptions
from openwafer.training.stream.plan.placement import StoreTier

MAX_NORM: Final = 1e9
NUM_WARM_UP: Final = 10
VOCABULARY: Final = 300

TakeStep = Callable[[], object]


@contextmanager
def run(tier: StoreTier, folder: Path) -> Iterator[TakeStep]:
    """A run of the product."""
    texts = folder / "texts"
    texts.mkdir()
    (texts / "text.txt").write_text(" ".join(f"{n} squared is {n * n};" for n in range(4000)))
    config = RunConfig(
        steps=100_000,
        data=TokensConfig(
            DataSource(SourceKind.TEXT, (str(texts),)), TokenizerTraining(vocab_size=VOCABULARY)
        ),
        folder=folder,
        name="run",
        model=TINY,
        batch=BatchConfig(size=4, sequence_length=12),
        clip_norm=MAX_NORM,
        checkpoint=CheckpointConfig(at_end=False),
        streaming=StreamingConfig(device="cpu", store=tier, mode=Mode.STREAMED),
        trace_steps=(),
    )
    place = RunFolder(config.path)
    with place.beginning(), opened(config, place, None, lambda _: None, StoreOptions()) as open_run:
        saver = Saver(open_run)
        saver.begin()
        yield partial(run_step, open_run, saver)
        saver.settle()


@contextmanager
def own_loop(_: Path, *, is_streamed: bool) -> Iterator[TakeStep]:
    """A loop of a few lines."""
    model = build(with_vocab_size(TINY, VOCABULARY), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clip: Callable[[float], Any] = partial(nn.utils.clip_grad_norm_, list(model.parameters()))
    streamed = stream_weights(model, optimizer, device_memory="300kB") if is_streamed else None
    if streamed is not None:
        clip = streamed.clip_grad_norm_
    tokens = torch.arange(48).reshape(4, 12)

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        clip(MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

    yield step
    if streamed is not None:
        streamed.close()


WAYS: Final = {
    "plain loop": partial(own_loop, is_streamed=False),
    "own loop": partial(own_loop, is_streamed=True),
    "run, memory": partial(run, StoreTier.DRAM),
    "run, disk": partial(run, StoreTier.DISK),
}


def timed(step: TakeStep, num_steps: int) -> list[tuple[float, float]]:
    """Milliseconds of wall and processor time of each step."""
    found = []
    for _ in range(num_steps):
        start = time.perf_counter(), time.process_time()
        step()
        found.append(
            (1e3 * (time.perf_counter() - start[0]), 1e3 * (time.process_time() - start[1]))
        )
    return found


def main() -> None:
    """Print a table of Markdown, or a profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", choices=WAYS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(asked.rounds):
        for way in [asked.profile] if asked.profile else WAYS:
            with tempfile.TemporaryDirectory() as folder, WAYS[way](Path(folder)) as step:
                timed(step, NUM_WARM_UP)
                if asked.profile:
                    with cProfile.Profile() as profile:
                        timed(step, asked.steps)
                    pstats.Stats(profile).sort_stats("tottime").print_stats(45)
                    return
                times[way] += timed(step, asked.steps)
    print("| way | wall, ms | processor, ms |\n|---|---|---|")
    for way, found in times.items():
        wall, processor = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"| {way} | {wall:.2f} | {processor:.2f} |")


if __name__ == "__main__":
    main()
