"""Environment variables of runs that more than one floor looks at."""

from typing import Final

FINAL_STATE_VARIABLE: Final = "OPENWAFER_FINAL_STATE"
"""Folder that each run writes its final state to, under the next number."""
CHECK_VARIABLE: Final = "OPENWAFER_CHECK"
"""Whether runs look for mistakes of their programs: ``off``, ``warning`` or ``error``."""
