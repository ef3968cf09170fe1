"""Weight streaming: split a model into layers, plan a step, walk it on a device."""

from openwafer.training.stream.execute.step_hooks import StepEnd
from openwafer.training.stream.loop.deferred_weights import deferred_weights
from openwafer.training.stream.loop.loop import StreamedLoop, stream_weights
from openwafer.training.stream.stream_options import StreamOptions

__all__ = ["StepEnd", "StreamOptions", "StreamedLoop", "deferred_weights", "stream_weights"]
