"""What the vector units of this processor can do: products and sums that wait for nothing."""

import functools
import time
from typing import Any, Final

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from openwafer.training.sparsity.kernels.emission import FLOAT, NUMBER, WORD, Emitter
from openwafer.training.sparsity.kernels.entry import STAMP, entry, record_of, take_item
from openwafer.training.sparsity.kernels.processor import lanes_here
from openwafer.training.sparsity.kernels.threads import run

CHAINS: Final = 12
"""Sums side by side: enough that each is ready when its next product comes."""
TURNS: Final = 1 << 16
TRIES: Final = 5

PEAK: Final = record_of(("turns", "total"))


@functools.cache
def peak_flops() -> float:
    """FLOPs a second of one thread, two for each product of 32-bit floats that is added to a sum.

    The most of some tries of a few milliseconds each, in seconds of the processor.
    """
    lanes, record, total = lanes_here()[0], np.zeros(1, PEAK), np.zeros(1, np.float32)
    record["turns"], record["total"] = TURNS, total.ctypes.data
    made = _peak_entry(STAMP, lanes)
    seconds = []
    for _ in range(1 + TRIES):
        start = time.thread_time()
        run(made, record, 1, 1)
        seconds.append(time.thread_time() - start)
    return 2 * TURNS * CHAINS * lanes / min(seconds[1:])


def _peak_entry(stamp: str, lanes: int) -> Any:
    @entry(PEAK)
    def peak(told: Any) -> None:
        len(stamp)
        if take_item(told) == 0:
            work = carray(told, 1)[0]
            add_to_chains(lanes, work.turns, work.total)

    return peak


@intrinsic(prefer_literal=True)
def add_to_chains(_typing: Any, lanes: Any, _turns: Any, _total: Any) -> Any:
    """Add products to sums in registers, and store what comes out, so that none is left out."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emit = Emitter(builder, lanes.literal_value)
        factor = emit.splat(FLOAT(0.5))

        def body(_place: Any, held: Any) -> Any:
            return [emit.add_product(each, factor, factor) for each in held]

        begun = [emit.splat(FLOAT(number)) for number in range(CHAINS)]
        _, sums = emit.loop((WORD(0), args[1]), 1, begun, body)
        total = functools.reduce(builder.fadd, sums)
        emit.store(builder.extract_element(total, NUMBER(0)), args[2])
        return context.get_dummy_value()

    return types.void(lanes, types.int64, types.int64), generate
