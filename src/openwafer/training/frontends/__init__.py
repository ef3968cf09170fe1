"""Ways into streamed training: a loop of your own calls :func:`stream_weights`."""

from openwafer.training.frontends.loop.deferred_weights import deferred_weights
from openwafer.training.frontends.loop.loop import StreamedLoop, stream_weights

__all__ = ["StreamedLoop", "deferred_weights", "stream_weights"]
