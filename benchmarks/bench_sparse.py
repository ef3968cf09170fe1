"""Products with sparse weights beside dense ones: how many times faster, and what others reach.

Sparse and dense take turns in one process, on the same threads, and a ratio is that of two medians.
With one thread, seconds are those of the processor, which other programs leave alone. Each product
is checked against float64 before it counts.

Columns: forward, gradient of the inputs, gradient of the values, and all three, with activations
that are tiled already; `whole` is all three with the tiling, and values brought into the order of
the products, as `sparse_linear` does it. All are times faster than the best dense fp32 product of
the machine: torch's own or that of the oneDNN inside it, for each of the three products the faster
one; the last column says how many are oneDNN's. `of peak` is the share of the processor's measured
FMA peak that all three reach, sparse ones by the products that are not zero. `bf16` is how many
times faster the three sparse products are than dense bf16 ones. The others are forward only, times
the best dense one.

    python benchmarks/bench_sparse.py [--threads 1] [--rounds 9] [--short]
    python benchmarks/bench_sparse.py --shapes 1024x1024 --tokens 512 --sparsities 0.9 0.95
"""

import argparse
import copy
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import scipy.sparse
import torch
from torch import Tensor, nn

from openwafer.cli.environment import restart_with_defaults
from openwafer.training.metrics.run_record import name_processor
from openwafer.training.sparsity.kernels import calls
from openwafer.training.sparsity.kernels.index import Index, walks_of
from openwafer.training.sparsity.kernels.processor import peak_flops
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.pattern import Pattern
from openwafer.training.sparsity.products import Products

SHAPES = ("1024x1024", "4096x1024", "4096x4096")
TOKENS = (128, 512, 2048)
SPARSITIES = (0.5, 0.75, 0.8, 0.9, 0.95, 0.99)
CHECKED_TOKENS = 64
MOST_OFF = 1e-4
HEAD = f"{'weight':>10} {'tokens':>6} {'zeros':>5} | {'fwd':>5} {'dX':>5} {'dW':>5} {'all':>5}"
HEAD += (
    f" {'whole':>5} | {'bf16':>5} {'CSR':>5} {'scipy':>5} | of peak: sparse, best dense, torch's"
)
HEAD += " | best dense fp32, ms"
PARTS = ("fwd", "dX", "dW")

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A sparse weight with activations, plain and tiled."""

    pattern: Pattern
    weight: Tensor
    inputs: Tensor
    gradient: Tensor

    @property
    def values(self) -> Tensor:
        """What the weight has at kept positions."""
        return self.pattern.values_of(self.weight)


def case_of(shape: str, num_tokens: int, sparsity: float) -> Case:
    rows, columns = map(int, shape.split("x"))
    mask = torch.rand(rows, columns) >= sparsity
    weight = torch.randn(rows, columns) * mask
    inputs, gradient = torch.randn(num_tokens, columns), torch.randn(num_tokens, rows)
    return Case(Pattern.from_mask(mask), weight, inputs, gradient)


def dense_works(case: Case) -> dict[str, Work]:
    x, g, weight = case.inputs, case.gradient, case.weight
    x_half, g_half, half = x.bfloat16(), g.bfloat16(), weight.bfloat16()
    by_onednn = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - the only door to it

    def onednn(left: Tensor, right: Tensor) -> Work:
        return lambda: by_onednn(left, right, None, "none", [], "")

    return {
        "torch fwd": lambda: x @ weight.T,
        "torch dX": lambda: g @ weight,
        "torch dW": lambda: g.T @ x,
        "onednn fwd": onednn(x, weight),
        "onednn dX": onednn(g, weight.T),
        "onednn dW": onednn(g.T, x.T),
        "bf16": lambda: (x_half @ half.T, g_half @ half, g_half.T @ x_half),
    }


def sparse_works(case: Case) -> dict[str, Work]:
    walk, transposed = walks_of(Index.of(case.pattern).words)
    x, g, values = case.inputs, case.gradient, case.values
    x_tiles, g_tiles = calls.tiled(x), calls.tiled(g)
    in_walk = calls.in_order_of_walk(walk, values)
    in_transposed = calls.in_order_of_walk(transposed, values)

    def forward() -> None:
        output = torch.empty(len(x), walk.shape[0])
        calls.multiply(walk, in_walk, x_tiles, output, torch.zeros(walk.shape[0]))

    def of_inputs() -> None:
        output = torch.empty(len(x), walk.shape[1])
        calls.multiply(transposed, in_transposed, g_tiles, output, torch.zeros(walk.shape[1]))

    def whole() -> None:
        calls.forward(walk, values, x, None)
        calls.backward((walk, transposed), g, x, values)

    return {
        "fwd": forward,
        "dX": of_inputs,
        "dW": lambda: calls.sample(walk, x_tiles, g_tiles, torch.zeros(len(values))),
        "whole": whole,
    }


def works_of_others(case: Case) -> dict[str, Work]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse tensors a prototype
        torch_csr = case.weight.to_sparse_csr()
    scipy_csr = scipy.sparse.csr_matrix(case.weight.numpy())
    x_T = case.inputs.T.contiguous()
    return {"CSR": lambda: torch_csr @ x_T, "scipy": lambda: scipy_csr @ x_T.numpy()}


def check(case: Case) -> None:
    """Compare the products of the first tokens with float64."""
    walks = walks_of(Index.of(case.pattern).words)
    x, g = case.inputs[:CHECKED_TOKENS], case.gradient[:CHECKED_TOKENS]
    of_inputs, of_values = calls.backward(walks, g, x, case.values)
    exact_x, exact_g, weight = x.double(), g.double(), case.weight.double()
    pairs = [
        (calls.forward(walks[0], case.values, x, None), exact_x @ weight.T),
        (of_inputs, exact_g @ weight),
        (of_values, case.pattern.values_of(exact_g.T @ exact_x)),
    ]
    for found, exact in pairs:
        off = (found - exact).abs().max() / exact.abs().max()
        if not off <= MOST_OFF:
            raise SystemExit(f"a product is wrong by {off:.1e}")


def medians(works: Mapping[str, Work], rounds: int) -> dict[str, float]:
    """Seconds of each work in the median, all works in turns."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            start = clock()
            work()
            if number:
                seconds[name].append(clock() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def row(shape: str, num_tokens: int, sparsity: float, rounds: int) -> str:
    case = case_of(shape, num_tokens, sparsity)
    check(case)
    own = medians({**dense_works(case), **sparse_works(case)}, rounds)
    others = medians(works_of_others(case), 3)
    torchs, onednns = ([own[f"{kind} {name}"] for name in PARTS] for kind in ("torch", "onednn"))
    dense = [*map(min, torchs, onednns)]
    sparse = [own[name] for name in PARTS]
    ratios = [a / b for a, b in zip(dense, sparse, strict=True)]
    ratios += [sum(dense) / sum(sparse), sum(dense) / own["whole"]]
    beside = [own["bf16"] / sum(sparse), *(dense[0] / seconds for seconds in others.values())]
    cells = " ".join(f"{r:5.2f}" for r in ratios), " ".join(f"{r:5.2f}" for r in beside)
    flops = 6 * num_tokens * case.weight.numel() / (peak_flops() * torch.get_num_threads())
    kept = case.pattern.num_kept / case.weight.numel()
    shares = flops * kept / sum(sparse), flops / sum(dense), flops / sum(torchs)
    reached = " ".join(f"{share:4.0%}" for share in shares)
    milliseconds = " ".join(f"{1e3 * seconds:.2f}" for seconds in dense)
    count = sum(a < b for a, b in zip(onednns, torchs, strict=True))
    return (
        f"{shape:>10} {num_tokens:6} {sparsity:5.2f} | {cells[0]} | {cells[1]} | {reached} | "
        f"{milliseconds}, {count} by oneDNN"
    )


def mlp_row(num_tokens: int, sparsity: float, rounds: int) -> str:
    """Two layers with GELU between, forward and backward, as a run has them: with their walks."""
    dense = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    sparse = copy.deepcopy(dense)
    masks = {f"{n}.weight": torch.rand(dense[n].weight.shape) >= sparsity for n in (0, 2)}
    kept = {name: int(mask.sum()) for name, mask in masks.items()}
    pack_linears(sparse, kept, lambda name, _: masks[name], Products.SPARSE)
    x = torch.randn(num_tokens, 1024, requires_grad=True)

    def work_of(model: nn.Module) -> Work:
        def work() -> None:
            model.zero_grad()
            x.grad = None
            model(x).sum().backward()

        return work

    works = {"dense": work_of(dense), "sparse": work_of(sparse)}
    seconds = medians(works, rounds)
    ratio = seconds["dense"] / seconds["sparse"]
    return f"MLP 1024-4096-1024 {num_tokens:6} {sparsity:5.2f} | {ratio:5.2f} times torch's fp32"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--short", action="store_true", help="the smallest weight, 512 tokens")
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--sparsities", nargs="+", type=float, default=SPARSITIES)
    chosen = parser.parse_args(given)
    if chosen.short:
        chosen.shapes, chosen.tokens = SHAPES[:1], (512,)
    return chosen


def main() -> None:
    restart_with_defaults()
    chosen = arguments()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    peak = f"FMA peak {peak_flops() / 1e9:.0f} GFLOP/s a thread"
    print(f"{name_processor()}, {peak}; {chosen.threads} threads, load {os.getloadavg()[0]:.1f}")
    print(HEAD)
    for shape in chosen.shapes:
        for num_tokens in chosen.tokens:
            for sparsity in chosen.sparsities:
                print(row(shape, num_tokens, sparsity, chosen.rounds), flush=True)
    for num_tokens in chosen.tokens:
        for sparsity in chosen.sparsities:
            print(mlp_row(num_tokens, sparsity, chosen.rounds), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
