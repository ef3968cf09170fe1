"""What vectors this processor has."""

import functools
from typing import Final

from numba.core.registry import cpu_target

from openwafer.training.sparsity.kernels.emission import NARROW

WIDTHS: Final = {16: {"+avx512f"}, 8: {"+avx2", "+fma"}, NARROW: set[str]()}
"""Lanes of the vectors that we write code for, and what a processor must have for them.

The last ones any processor takes, if by several instructions.
"""


@functools.cache
def lanes_here() -> tuple[int, ...]:
    """Lanes that code for this processor may have, the best ones first.

    It is the processor that numba compiles for, which NUMBA_CPU_NAME can say.
    """
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    found = set(features.split(","))
    return tuple(lanes for lanes, needed in WIDTHS.items() if needed <= found)
