"""Environment variables that torch and its threads read when they are loaded."""

import os
from collections.abc import Mapping
from typing import Final

# Threads sleep between two operators, where they would else spin on the cores that the threads of
# the disk need. Tensors of 2 MiB and more lie in huge pages: a step makes and frees a gradient for
# every weight, and each of their pages costs a fault.
DEFAULTS: Final[Mapping[str, str]] = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1"}


def set_defaults() -> None:
    """Set what the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
