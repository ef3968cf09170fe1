"""Seeds of a run: pure functions of the run's seed and of the position in the run.

No generator's state is saved anywhere: a resumed run draws the numbers of the unbroken one because
every micro-batch of every step sets its own seed.
"""

import random

import numpy as np
import torch
import xxhash

_GENERATE = "generate"


def micro_batch_seed(seed: int, step: int, index: int) -> int:
    """Seed of everything random in the forward of one micro-batch, dropout above all.

    Args:
        seed: of the run.
        step: counted from 0.
        index: of the micro-batch in the global batch, counted from 0.
    """
    return _hash(seed, step, index)


def generation_seed(seed: int, index: int = 0) -> int:
    """Seed under which the tokens that follow the prompt of an index are sampled."""
    return _hash(seed, _GENERATE, index) if index else _hash(seed, _GENERATE)


def seed_micro_batch(seed: int, step: int, index: int) -> None:
    """Set the generators for one micro-batch: torch's on devices in use, Python's and NumPy's."""
    drawn = micro_batch_seed(seed, step, index)
    # For devices that nobody uses yet, torch notes the stack of every call.
    is_cuda_used = torch.cuda.is_initialized()
    (torch if is_cuda_used else torch.default_generator).manual_seed(drawn)
    random.seed(drawn)
    np.random.seed(drawn % 2**32)


def _hash(*position: int | str) -> int:
    # 63 bits, so that the seed is a whole number of every signed 64-bit interface on its way.
    return xxhash.xxh3_64_intdigest(" ".join(map(str, position)).encode()) >> 1
