"""A page that shows a run: the wafer along its cycles, or the trace and the report of a training.

`first_look` makes what a run shows at once, `opened` all its columns, `server` answers the page
with them, `export` writes it as a file; `openwafer view` is the door to all.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openwafer.view.live_record import columns_so_far as columns_so_far
    from openwafer.view.opened import columns_of_run as columns_of_run
    from openwafer.view.symbols import Symbols as Symbols

# Loaded when first used, since they bring the simulator: a first look needs none.
_HOMES = {"Symbols": "symbols", "columns_of_run": "opened", "columns_so_far": "live_record"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'", name=name)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
