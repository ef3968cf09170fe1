"""Tokens a second of a model that is read from disk for each of them, beside the disk's rate.

Two figures, each the median over rounds in which the disk, a resident model and the streamed one
have a turn: a pass that gives one text, or several, a token / the time that raw direct I/O takes
for the bytes it read, and the same pass / the larger of that time and the resident model's pass.
The texts that a streamed and a resident model write have to be equal.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import transformers
from bench_disk import RawProbe
from termination import clean_up_when_terminated

import openwafer
from openwafer.cli.environment import restart_with_defaults
from openwafer.training.models.key_values import forward_from, new_key_values
from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt
from openwafer.training.plan_record import Mode
from openwafer.training.store import StoreOptions
from openwafer.training.stream.assemble import assemble, plan_run
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.stream_options import PlanInput, StreamOptions

ROOT = Path(__file__).parents[1]
PROBE_BYTES = 512 << 20
NUM_PROMPT_TOKENS = 32
HOST_BYTES = 256 << 20


@dataclass
class Texts:
    """Texts under way, each with its last token and its keys and values."""

    model: ReferenceGpt
    tokens: list[torch.Tensor]
    pasts: list[transformers.Cache | None] = field(init=False)

    def __post_init__(self) -> None:
        self.pasts = [new_key_values(self.model) for _ in self.tokens]

    def forwards(self) -> list["partial[torch.Tensor]"]:
        """Of each text: the likeliest next token."""
        pairs = zip(self.tokens, self.pasts, strict=True)
        return [partial(_next, self.model, tokens, past) for tokens, past in pairs]


def _next(model: ReferenceGpt, tokens: torch.Tensor, past: transformers.Cache) -> torch.Tensor:
    logits: torch.Tensor = forward_from(model, tokens, past).logits  # type: ignore[attr-defined]
    return logits[:, -1].argmax(-1, keepdim=True)


def streamed_pass(execution: Execution, texts: Texts) -> float:
    """Seconds of one token for each text."""
    start = time.perf_counter()
    texts.tokens = execution.evaluate(texts.forwards())
    return time.perf_counter() - start


def resident_pass(texts: Texts) -> float:
    """As :func:`streamed_pass`, by a model in memory."""
    start = time.perf_counter()
    with torch.no_grad():
        texts.tokens = [forward() for forward in texts.forwards()]
    return time.perf_counter() - start


def measure(config: GptConfig, num_texts: int, num_rounds: int, scratch: Path) -> str:
    """A row of the table."""
    with openwafer.deferred_weights(scratch):
        torch.manual_seed(0)
        model = ReferenceGpt(config).eval()
    torch.manual_seed(0)
    plain = ReferenceGpt(config).eval()
    prompts = list(torch.randint(0, config.vocab_size or 1, (num_texts, 1, NUM_PROMPT_TOKENS)))
    execution = stream(model, prompts[0], scratch / f"store-{num_texts}")
    texts, expected = Texts(model, prompts), Texts(plain, prompts)
    streamed_pass(execution, texts)
    resident_pass(expected)
    probe = RawProbe(scratch / "raw.bin", PROBE_BYTES, StoreOptions().num_readers)
    over_disk, over_limit, rates = [], [], []
    for _ in range(num_rounds):
        seconds_a_byte = probe.read() / probe.num_bytes
        resident = resident_pass(expected)
        before = execution.store.traffic.read_bytes
        seconds = streamed_pass(execution, texts)
        disk = (execution.store.traffic.read_bytes - before) * seconds_a_byte
        over_disk.append(seconds / disk)
        over_limit.append(seconds / max(disk, resident))
        rates.append(num_texts / seconds)
    probe.close()
    if any(not torch.equal(*pair) for pair in zip(texts.tokens, expected.tokens, strict=True)):
        sys.exit("the streamed model wrote other tokens than the resident one")
    execution.close()
    execution.store.close()
    medians = [statistics.median(figures) for figures in (over_disk, over_limit, rates)]
    return f"| {num_texts} | {medians[0]:.2f} | {medians[1]:.2f} | {medians[2]:.2f} |"


def stream(model: ReferenceGpt, tokens: torch.Tensor, folder: Path) -> Execution:
    """The model with its weights on disk, but for what a small ring holds."""
    workload = Workload(model, [tokens], lambda model, batch: model(batch, labels=batch).loss)
    options = StreamOptions(
        device="cpu", mode=Mode.STREAMED, tier=StoreTier.DISK, host_memory_bytes=HOST_BYTES
    )
    planned = plan_run(workload, Updater((), model), PlanInput(options), folder=folder)
    return assemble(model, planned, folder=folder)


def main() -> None:
    """Measure in a temporary folder, which is removed."""
    restart_with_defaults()
    clean_up_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer layers and rounds")
    parser.add_argument("--texts", type=int, nargs="+", default=(1, 8))
    options = parser.parse_args()
    config = GptConfig(
        vocab_size=8192,
        context_length=256,
        hidden_size=1024,
        num_layers=8 if options.quick else 16,
        num_heads=16,
        num_kv_heads=4,
    )
    (ROOT / "build").mkdir(exist_ok=True)
    print("| texts | pass / disk | pass / max(resident, disk) | tokens a second |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        for num_texts in options.texts:
            print(measure(config, num_texts, 4 if options.quick else 9, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
