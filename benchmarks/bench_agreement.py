"""What it costs that the systems of a user's own loop agree before they do something together.

Run by ``torchrun --nproc-per-node 2 benchmarks/bench_agreement.py``. An agreement of all ranks is
timed beside the library's gather of 16 bytes from all ranks to all, in turns.
"""

import time
from collections.abc import Callable

import torch

from openwafer.training.collectives.joining import meet_launched
from openwafer.training.systems.control import Control

NUM_TURNS = 5
NUM_CALLS = 500


def microseconds(call: Callable[[], object]) -> float:
    """Of one call, the mean over many."""
    start = time.perf_counter()
    for _ in range(NUM_CALLS):
        call()
    return (time.perf_counter() - start) / NUM_CALLS * 1e6


def main() -> None:
    """Print a line a turn, on rank 0."""
    torch.set_num_threads(1)
    (group,) = meet_launched(60.0).groups(("control",))
    control, own = Control(group), torch.zeros(4)
    for _ in range(NUM_TURNS):
        agreed = microseconds(lambda: control.reach("a backward"))
        gathered = microseconds(lambda: group.gather(own, "16 bytes"))
        if group.rank == 0:
            print(f"agreement {agreed:.0f} us, gather {gathered:.0f} us")


if __name__ == "__main__":
    main()
