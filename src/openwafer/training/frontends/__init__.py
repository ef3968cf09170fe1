"""Ways into streamed training: a loop of your own calls :func:`stream_weights`."""

from openwafer.training.frontends.loop.loop import StreamedLoop, stream_weights
from openwafer.training.store.deferred_memory import deferred_weights

__all__ = ["StreamedLoop", "deferred_weights", "stream_weights"]
