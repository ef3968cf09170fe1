"""Weight streaming: split a model into layers, plan a step, walk it on a device."""

from openwafer.training.stream.execute.execution import StepEnd
from openwafer.training.stream.stream_options import StreamOptions

__all__ = ["StepEnd", "StreamOptions"]
