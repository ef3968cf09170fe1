"""Work that is left out: time, FLOPs and bytes of models and attentions beside those of the whole.

Models stream from host memory and take a step in turn; printed are shares of what the whole model
takes, median over the steps. `depths` gives every layer half of the tokens; `halting` trains a
Universal Transformer on tokens of which a share is easy, then compares what it leaves out; `exit`
gives each call a layer of its own and lets all tokens halt behind some; `attention` is causal
attention over fewer keys, forward and backward, beside dense attention of half its square.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openwafer.recipes.depths.model import MixtureOfDepths
from openwafer.recipes.halting.model import HaltingTransformer
from openwafer.training.models.attention_pattern import Pattern, pattern_of
from openwafer.training.models.sparse_attention import sparse_attention
from openwafer.training.plan_record import Mode
from openwafer.training.stream.assemble import assemble, plan_run
from openwafer.training.stream.device.device import MemoryMeter
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.stream_options import PlanInput, StreamOptions

VOCABULARY = 256
ATTENTIONS = ("blocks-512-2-1", "strided-512", "sliding-1024")


@dataclass(frozen=True)
class Cost:
    """Of a step."""

    loss: float
    seconds: float
    fetch_bytes: int
    flops: int


def loss_of(model: nn.Module, batch: object) -> Tensor:
    """The loss on tokens and their labels."""
    ids, labels = batch  # type: ignore[misc]
    loss: Tensor = model(ids, labels=labels).loss
    return loss


def batch_of(shape: tuple[int, int], step: int) -> tuple[Tensor, Tensor]:
    """Seven of eight tokens are followed by themselves, the others by nothing that can be known."""
    generator = torch.Generator().manual_seed(step)
    ids, other = (torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))
    labels = torch.where(ids < VOCABULARY * 7 // 8, ids, other)
    # The model's loss is of each token against the label behind it.
    return ids, labels.roll(1, 1)


class Streamed:
    """A model that streams, with a batch of a shape."""

    def __init__(self, model: nn.Module, shape: tuple[int, int]) -> None:
        self.model, self._shape = model, shape
        updater = Updater(torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True), model)
        options = StreamOptions(device="cpu", mode=Mode.STREAMED, min_layer_bytes=1)
        workload = Workload(model, [batch_of(shape, 0)], loss_of)
        planned = plan_run(workload, updater, PlanInput(options), folder=None)
        self.execution = assemble(model, planned, folder=None)

    def step(self, number: int, *, is_counted: bool = False) -> Cost:
        """One step of training, with its FLOPs counted or not, which takes time."""
        execution, batch = self.execution, batch_of(self._shape, number)
        meter = MemoryMeter()
        before, start = execution.traffic.fetch_bytes, time.process_time()
        with meter if is_counted else torch.enable_grad():
            (loss,) = execution.run(
                [lambda: loss_of(self.model, batch)], lambda losses: losses, None
            )
        execution.complete_step(1.0)
        execution.flush()
        fetched = execution.traffic.fetch_bytes - before
        return Cost(loss, time.process_time() - start, fetched, meter.flops)

    def cost(self, steps: int) -> Cost:
        """Medians."""
        timed = [self.step(number) for number in range(1, steps + 1)]
        counted = self.step(steps + 1, is_counted=True)
        seconds = statistics.median(one.seconds for one in timed)
        return Cost(counted.loss, seconds, counted.fetch_bytes, counted.flops)


def told(name: str, cost: Cost, whole: Cost) -> str:
    """A line: shares of the whole."""
    return (
        f"{name:24} {cost.loss:7.4f} {cost.seconds / whole.seconds:7.3f} "
        f"{cost.flops / whole.flops:7.3f} {cost.fetch_bytes / whole.fetch_bytes:7.3f}"
    )


def whole(model: HaltingTransformer | MixtureOfDepths) -> nn.Module:
    """The model, which leaves nothing out."""
    model.runs_whole = True
    return model


def depths(args: argparse.Namespace) -> Iterator[str]:
    """Half of the tokens in every layer."""

    def model() -> MixtureOfDepths:
        torch.manual_seed(0)
        return MixtureOfDepths(VOCABULARY, args.width, 4, args.layers, capacity=0.5, every=1)

    shape = (args.batch, args.tokens)
    all_of_it = Streamed(whole(model()), shape).cost(args.steps)
    yield told("depths, half of tokens", Streamed(model(), shape).cost(args.steps), all_of_it)


def halting(args: argparse.Namespace) -> Iterator[str]:
    """What one trained model leaves out by token, sequence and batch."""
    torch.manual_seed(0)
    trained = HaltingTransformer(VOCABULARY, args.width, 4, args.layers)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=3e-3)
    shape = (args.batch, args.tokens)
    for step in range(args.train):
        loss_of(trained, batch_of(shape, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    costs = {}
    for halts in ("nothing", "token", "sequence", "batch"):
        kind = "token" if halts == "nothing" else halts
        model = HaltingTransformer(VOCABULARY, args.width, 4, args.layers, halts=kind)  # type: ignore[arg-type]
        model.load_state_dict(trained.state_dict())
        model.runs_whole = halts == "nothing"
        costs[halts] = Streamed(model, shape).cost(args.steps)
    for halts, cost in costs.items():
        yield told(f"halting, {halts}", cost, costs["nothing"])


def exits(args: argparse.Namespace) -> Iterator[str]:
    """All tokens halt behind a number of calls, each of a layer of its own."""
    costs = {}
    for bias in (-9.0, 0.0, 9.0):
        torch.manual_seed(0)
        model = HaltingTransformer(
            VOCABULARY, args.width, 4, args.layers, halts="batch", is_shared=False
        )
        nn.init.constant_(model.halting.bias, bias)
        costs[bias] = Streamed(model, (args.batch, args.tokens)).cost(args.steps)
    for bias, cost in costs.items():
        yield told(f"exit, bias {bias:+.0f}", cost, costs[-9.0])


def attention(args: argparse.Namespace) -> Iterator[str]:
    """Forward and backward of attention: share of time, of FLOPs, and one over the other."""
    shape = (1, 4, args.keys, 64)
    inputs = tuple(torch.randn(shape, requires_grad=True) for _ in range(3))
    (query, key, value), grad = inputs, torch.randn(shape)

    def dense() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def sparse(name: str) -> Callable[[], Tensor]:
        pattern = pattern_of(name)
        return lambda: sparse_attention(pattern, query, (key, value))

    ways = {"dense": dense, **{name: sparse(name) for name in ATTENTIONS}}
    rounds = [
        {name: took(compute, inputs, grad) for name, compute in ways.items()}
        for _ in range(args.steps)
    ]
    seconds = {name: statistics.median(taken[name] for taken in rounds) for name in ways}
    for name in ATTENTIONS:
        time_share = seconds[name] / seconds["dense"]
        share = share_of(pattern_of(name), args.keys)
        yield f"{name:24} {time_share:7.4f} {share:7.4f} {time_share / share:7.3f}"


def took(compute: Callable[[], Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> float:
    """Seconds of the processor for a forward and a backward."""
    start = time.process_time()
    out = compute()
    torch.autograd.grad(out, inputs, grad)
    return time.process_time() - start


def share_of(pattern: Pattern, num_tokens: int) -> float:
    """Share of a causal square's scores that are those of whole blocks, whoever computes them."""
    size, num_scores = pattern.block, 0
    for index in range(num_tokens // size):
        near = max(0, index - pattern.before)
        num_keys = (index + 1 - near + min(pattern.first, near)) * size
        num_scores += size * (num_keys + index * pattern.sees_last)
    return num_scores / (num_tokens**2 / 2)


WAYS = {"depths": depths, "halting": halting, "exit": exits, "attention": attention}


def main() -> None:
    """Print a line for each model and attention."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*WAYS], default=[*WAYS])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6, help="or calls of one layer")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--train", type=int, default=60, help="steps before halting is compared")
    parser.add_argument("--keys", type=int, default=16384)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':24} {'loss':>7} {'time':>7} {'FLOPs':>7} {'bytes':>7}  of the whole model's")
    for way in args.only:
        for line in WAYS[way](args):
            print(line, flush=True)


if __name__ == "__main__":
    main()
