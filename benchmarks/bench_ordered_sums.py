"""What the sum in one order costs: its rate beside the library's all-reduce, on one machine.

Each rank is a process with one thread. A pass sums 8 records of one size, of which each rank has
one part, or four; the all-reduce gives every rank the sum, of one part.
"""

import argparse
import socket
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context

import torch
from torch import distributed as dist

from openwafer.training.collectives.group import Group, Rank
from openwafer.training.collectives.ordered_sums import OrderedSums

NUM_RECORDS = 8
TIMEOUT = timedelta(seconds=120)


def passes_of(processes: dist.ProcessGroup, mebibytes: int) -> dict[str, Callable[[], None]]:
    """One pass of each kind, by name."""
    like = torch.empty(mebibytes << 18)
    records = {str(index): {"weight": like} for index in range(NUM_RECORDS)}
    ranks = [Rank(index, socket.gethostname()) for index in range(processes.size())]
    owners = {record: int(record) % len(ranks) for record in records}
    sums = OrderedSums(Group(processes, ranks, TIMEOUT.total_seconds()), records, owners)
    gradients = {name: torch.ones_like(like) for name in map(str, range(NUM_RECORDS * 4))}

    def in_order(num_parts: int) -> None:
        sums.begin()
        for record in range(NUM_RECORDS):
            own = [gradients[str(4 * record + part)] for part in range(num_parts)]
            sums.add(str(record), [{"weight": one} for one in own])
        for _ in sums.finish():
            pass

    def all_reduce() -> None:
        for record in range(NUM_RECORDS):
            dist.all_reduce(gradients[str(record)])

    return {
        "one part": lambda: in_order(1),
        "four parts": lambda: in_order(4),
        "all-reduce": all_reduce,
    }


def measure(rank: int, size: int, port: int, mebibytes: int, rounds: int) -> dict[str, float]:
    """Median seconds of a pass of each kind, in turns."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, TIMEOUT, size, rank)
    passes = passes_of(dist.new_group(), mebibytes)
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(rounds):
        for name, run in passes.items():
            dist.barrier()
            start = time.perf_counter()
            run()
            dist.barrier()
            seconds[name].append(time.perf_counter() - start)
    dist.destroy_process_group()
    return {name: statistics.median(each) for name, each in seconds.items()}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def main() -> None:
    """Print GB/s of summed gradients for each number of ranks and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16], help="MiB of a record")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    for size in args.ranks:
        for mebibytes in args.sizes:
            port = free_port()
            with ProcessPoolExecutor(size, mp_context=get_context("spawn")) as pool:
                given = (size, port, mebibytes, args.rounds)
                found = [pool.submit(measure, rank, *given) for rank in range(size)]
                seconds = found[0].result()
            num_bytes = NUM_RECORDS * mebibytes << 20
            rates = [f"{name} {num_bytes / each / 1e9:5.2f}" for name, each in seconds.items()]
            print(f"{size} ranks, {mebibytes:3} MiB, GB/s: {', '.join(rates)}", flush=True)


if __name__ == "__main__":
    main()
