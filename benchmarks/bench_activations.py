"""Times faster of linear maps that skip the zeros of their inputs, by the share of zeros.

Two figures of each, medians of the ratios of some rounds in which both ways have a turn: the linear
map forward and backward, `[tokens, 4 d]` to `[tokens, d]`, with an input of random zeros; and the
mlp `d - 4 d - ReLU - d` around it, whose ReLU lets through as many. Seconds are those of the
thread, so that other programs hardly count.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from openwafer.training.sparsity import activations as pieces
from openwafer.training.sparsity.activations import activation_linear

Linear = Callable[[Tensor, Tensor, Tensor], Tensor]
ZEROS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99)


def skipping(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The linear map that is measured."""
    return activation_linear(inputs, weight, bias)[0]


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Random tensors that want gradients."""
    return [(torch.randn(shape) / shape[-1] ** 0.5).requires_grad_() for shape in shapes]


def seconds(run: Callable[[], Tensor], wanted: Sequence[Tensor], gradient: Tensor) -> float:
    """Of a forward and its backward."""
    start = time.thread_time()
    torch.autograd.grad(run(), wanted, gradient)
    return time.thread_time() - start


def gains(size: int, tokens: int, zeros: float, num_rounds: int) -> tuple[float, float]:
    """Of the linear map and of the mlp."""
    weight, bias, inputs = leaves((size, 4 * size), (size,), (tokens, 4 * size))
    inputs.data *= torch.rand(inputs.shape) >= zeros
    first, begun, x = leaves((4 * size, size), (4 * size,), (tokens, size))
    hidden = functional.linear(x, first, begun).detach()
    begun.data -= hidden.flatten()[: 1 << 20].quantile(zeros)
    gradient = torch.randn(tokens, size)

    def linear(multiply: Linear) -> float:
        given = inputs, weight, bias
        return seconds(lambda: multiply(*given), given, gradient)

    def mlp(multiply: Linear) -> float:
        def run() -> Tensor:
            return multiply(functional.linear(x, first, begun).relu(), weight, bias)

        return seconds(run, (x, first, begun, weight, bias), gradient)

    def gain(of: Callable[[Linear], float]) -> float:
        rounds = range(num_rounds + 1)
        ratios = [of(functional.linear) / of(skipping) for _ in rounds]
        return statistics.median(ratios[1:])

    return gain(linear), gain(mlp)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 256, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # Zeros are skipped in any case here.
    pieces.LEAST_ZEROS, pieces.FEWEST_TOKENS = 0.0, 1  # type: ignore[misc]
    print("| size | tokens | " + " | ".join(f"{zeros:.0%}" for zeros in ZEROS) + " |")
    for size in args.sizes:
        for tokens in args.tokens:
            found = [gains(size, tokens, zeros, args.rounds) for zeros in ZEROS]
            told = (f"{linear:.2f}, {mlp:.2f}" for linear, mlp in found)
            print(f"| {size} | {tokens} | " + " | ".join(told) + " |", flush=True)


if __name__ == "__main__":
    main()
