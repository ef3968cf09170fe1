"""Bytes over the link of a mixture whose experts are fused: whole weights against one by one.

A small Mixtral is streamed from host memory in both forms, which take a step in turn. Printed are
the experts used, MiB fetched and pushed a step, and the ratio of the times, median over the steps.
It drives the execution itself: a run has one form and a loop the other, and this compares no more.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from openwafer.training.models import TransformersModel, build
from openwafer.training.plan_record import Mode
from openwafer.training.stream.assemble import assemble, plan_run
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.stream_options import PlanInput, StreamOptions

VOCABULARY = 256
MIB = 1 << 20
COLUMNS = (
    *("experts", "tokens", "used a layer"),
    *("fetched, whole", "one by one", "pushed, whole", "one by one", "time"),
)


def loss_of(model: nn.Module, tokens: object) -> torch.Tensor:
    """The loss on a sequence of tokens."""
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


class Streamed:
    """A mixture that streams in one form.

    Args:
        config: of the mixture.
        num_tokens: of a step.
    """

    def __init__(self, config: Mapping[str, int], num_tokens: int, *, by_expert: bool) -> None:
        self._num_tokens = num_tokens
        self._model = build(TransformersModel("mixtral", config=config), 0)
        updater = Updater(torch.optim.AdamW(self._model.parameters(), fused=True), self._model)
        options = StreamOptions(device="cpu", mode=Mode.STREAMED)
        workload = Workload(self._model, [self._tokens(0)], loss_of)
        planned = plan_run(workload, updater, PlanInput(options, by_expert=by_expert), folder=None)
        self.execution = assemble(self._model, planned, folder=None)

    def _tokens(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        return torch.randint(0, VOCABULARY, (1, self._num_tokens), generator=generator)

    def step(self, number: int) -> "Measured":
        """One step of training."""
        traffic, tokens = self.execution.traffic, self._tokens(number)
        fetched, pushed, start = traffic.fetch_bytes, traffic.push_bytes, time.perf_counter()
        self.execution.run([lambda: loss_of(self._model, tokens)], lambda loss: loss, None)
        self.execution.complete_step(1.0)
        seconds = time.perf_counter() - start
        used = self.execution.experts_used
        # Each expert has two weights.
        num_used = None if used is None else len(used) / 2 / self._model.config.num_hidden_layers
        return Measured(
            traffic.fetch_bytes - fetched, traffic.push_bytes - pushed, seconds, num_used
        )


@dataclass(frozen=True)
class Measured:
    """What a step took; `num_used` experts a layer are None where they stream whole."""

    fetched: int
    pushed: int
    seconds: float
    num_used: float | None


def compare(config: Mapping[str, int], num_tokens: int, num_steps: int) -> str:
    """A row of the table."""
    whole = Streamed(config, num_tokens, by_expert=False)
    by_expert = Streamed(config, num_tokens, by_expert=True)
    turns = [(whole.step(number), by_expert.step(number)) for number in range(num_steps)][1:]
    ratio = statistics.median(second.seconds / first.seconds for first, second in turns)
    forms = list(zip(*turns, strict=True))
    columns = [
        config["num_local_experts"],
        num_tokens,
        f"{statistics.mean(one.num_used or 0 for one in forms[1]):.1f}",
        *(f"{statistics.mean(one.fetched for one in form) / MIB:.1f}" for form in forms),
        *(f"{statistics.mean(one.pushed for one in form) / MIB:.1f}" for form in forms),
        f"{ratio:.2f}",
    ]
    for streamed in (whole, by_expert):
        streamed.execution.close()
        streamed.execution.store.close()
    return f"| {' | '.join(map(str, columns))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4, 32, 256])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4, help="of which the first does not count")
    asked = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"| {' | '.join('---' for _ in COLUMNS)} |")
    for num_experts in asked.experts:
        config = {
            "vocab_size": VOCABULARY,
            "hidden_size": asked.width,
            "intermediate_size": 2 * asked.width,
            "num_hidden_layers": asked.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": num_experts,
            "num_experts_per_tok": 2,
        }
        for num_tokens in asked.tokens:
            print(compare(config, num_tokens, asked.steps), flush=True)


if __name__ == "__main__":
    main()
