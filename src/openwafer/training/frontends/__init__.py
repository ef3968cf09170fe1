"""Ways into streamed training: a loop of your own calls :func:`stream_weights`."""

from typing import TYPE_CHECKING

from openwafer.lazy_names import lazy_names
from openwafer.training.store.deferred_memory import deferred_weights

if TYPE_CHECKING:
    from openwafer.training.frontends.loop.loop import StreamedLoop, stream_weights

__all__ = ["StreamedLoop", "deferred_weights", "stream_weights"]

# Loaded when first used: the vendor's front end on this engine has no loop, and waits for none.
_HOMES = {"StreamedLoop": "loop.loop", "stream_weights": "loop.loop"}

__getattr__ = lazy_names(__name__, _HOMES)
