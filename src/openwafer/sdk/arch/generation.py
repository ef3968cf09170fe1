"""WSE-2 and WSE-3 as numbers.

Sources: the SDK's public documentation (queues, ids, colors, memory) and published measurements of
its simulator (cycles); docs/design/wafer-model.md lists each with its class.
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from openwafer.sdk.arch.timing import WSE2_TIMING, WSE3_TIMING, Timing

NUM_COLORS: Final = 24
NUM_TASK_IDS: Final = 64
NUM_MICROTHREADS: Final = 8
NUM_DSRS: Final = 16
"""Registers in each of the three files: destination, first and second source."""

WORD_BYTES: Final = 2
MEMORY_WORDS: Final = 48 * 1024 // WORD_BYTES

TEARDOWN_TASK: Final = 29
TIMER_TASK: Final = 30
NO_TASK: Final = 31


class Arch(StrEnum):
    """A wafer generation, by the name that the compiler's option takes."""

    WSE2 = "wse2"
    WSE3 = "wse3"


@dataclass(frozen=True)
class Generation:
    """What differs between generations.

    Attributes:
        input_queue_words: depth of each input queue, in wavelets.
        output_queue_words: depth of each output queue, in wavelets.
        first_local_task_id: lowest id that a local task may have.
        switch_colors: colors that may have switch positions.
        timing: its parameters of time.
        max_fabric: columns and rows of the usable fabric.
        clock_hertz: cycles a second.
        edge_bits_per_second: what the links of a system move each way, all together.
    """

    arch: Arch
    input_queue_words: tuple[int, ...]
    output_queue_words: tuple[int, ...]
    first_local_task_id: int
    switch_colors: frozenset[int]
    timing: Timing
    max_fabric: tuple[int, int]
    clock_hertz: float
    edge_bits_per_second: float = 12 * 100e9


WSE2: Final = Generation(
    arch=Arch.WSE2,
    input_queue_words=(6, 6, 4, 4, 2, 2, 2, 2),
    output_queue_words=(2, 2, 6, 6, 2, 2),
    first_local_task_id=0,
    switch_colors=frozenset(range(NUM_COLORS)),
    timing=WSE2_TIMING,
    max_fabric=(757, 996),
    clock_hertz=0.85e9,
)
WSE3: Final = Generation(
    arch=Arch.WSE3,
    input_queue_words=(8, 8, 4, 4, 4, 4, 4, 4),
    output_queue_words=(8,) * 8,
    first_local_task_id=8,
    switch_colors=frozenset((*range(10), 12, 13, 16, 17, 20, 21)),
    timing=WSE3_TIMING,
    max_fabric=(762, 1176),
    clock_hertz=0.875e9,
)

GENERATIONS: Final = MappingProxyType({Arch.WSE2: WSE2, Arch.WSE3: WSE3})
"""Every generation by its name."""
