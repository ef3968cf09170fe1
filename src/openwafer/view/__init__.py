"""A page that shows a run: the wafer along its cycles, or the trace and the report of a training.

`first_look` makes what a run shows at once, `opened` all its columns, `server` answers the page
with them, `export` writes it as a file; `openwafer view` is the door to all.
"""

from typing import TYPE_CHECKING

from openwafer.lazy_names import lazy_names

if TYPE_CHECKING:
    from openwafer.view.live_record import columns_so_far as columns_so_far
    from openwafer.view.opened import columns_of_run as columns_of_run
    from openwafer.view.symbols import Symbols as Symbols

# Loaded when first used, since they bring the simulator: a first look needs none.
__getattr__ = lazy_names(
    __name__, {"Symbols": "symbols", "columns_of_run": "opened", "columns_so_far": "live_record"}
)
