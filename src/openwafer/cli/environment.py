"""Environment variables that torch, its threads and the C library read when they are loaded."""

import os
import sys
from collections.abc import Mapping
from typing import Final

# Threads sleep between two operators, where they would else spin on the cores that the threads of
# the disk need. Tensors of 2 MiB and more lie in huge pages: a step makes and frees a gradient for
# every weight, and each of their pages costs a fault. What glibc cuts off an aligned block joins
# its neighbours again when they are freed: kept for small blocks, it parts the free memory between
# tensors, and the heap of a deep model grows to several times what is in use.
DEFAULTS: Final[Mapping[str, str]] = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "THP_MEM_ALLOC_ENABLE": "1",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0",
}


def restart_with_defaults() -> None:
    """Start the program anew, in its own process, unless all variables are set."""
    if not DEFAULTS.keys() <= os.environ.keys():
        os.environ.update({**DEFAULTS, **os.environ})
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
