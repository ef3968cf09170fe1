"""Products with sparse weights on two threads, alone and beside programs that keep cores busy.

Forward and both gradients, on one thread and on two in turns, without variables of the environment:
threads of OpenMP spin as they do in a program of Python. Ends with code 1 where two threads take
more than 1.1 times as long as one.

    python benchmarks/bench_sparse_neighbours.py [--shape 1024x1024] [--seconds 1]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from openwafer.training.sparsity.kernels import calls
from openwafer.training.sparsity.kernels.index import Index, walks_of
from openwafer.training.sparsity.pattern import Pattern

MOST_RATIO = 1.1
TURNS = 4


def product(shape: str, num_tokens: int, sparsity: float) -> Callable[[], None]:
    """A forward and a backward."""
    rows, columns = map(int, shape.split("x"))
    weight = torch.randn(rows, columns) * (torch.rand(rows, columns) >= sparsity)
    pattern = Pattern.from_mask(weight != 0)
    walks, values = walks_of(Index.of(pattern).words), pattern.values_of(weight)
    inputs, gradient = torch.randn(num_tokens, columns), torch.randn(num_tokens, rows)

    def multiply() -> None:
        calls.forward(walks[0], values, inputs, None)
        calls.backward(walks, gradient, inputs, values)

    return multiply


@contextmanager
def neighbours(number: int) -> Iterator[None]:
    """Programs that compute without end."""
    words = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(words) for _ in range(number)]
    try:
        time.sleep(0.5)  # until they have started
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def seconds_of(multiply: Callable[[], None], num_threads: int, at_least: float) -> float:
    """Mean of one product, over so many seconds."""
    torch.set_num_threads(num_threads)
    multiply()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < at_least:
        multiply()
        count += 1
    return (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="1024x1024")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--seconds", type=float, default=1.0)
    chosen = parser.parse_args()
    multiply = product(chosen.shape, chosen.tokens, chosen.sparsity)
    worst = 0.0
    for number in range(3):
        with neighbours(number):
            found = [
                [seconds_of(multiply, threads, chosen.seconds) for threads in (1, 2)]
                for _ in range(TURNS)
            ]
        one, two = (1e3 * sum(each) / TURNS for each in zip(*found, strict=True))
        print(f"{number} neighbours: {one:.2f} ms on one thread, {two:.2f} on two", flush=True)
        worst = max(worst, two / one)
    if worst > MOST_RATIO:
        raise SystemExit(f"two threads take {worst:.2f} times as long as one")


if __name__ == "__main__":
    main()
