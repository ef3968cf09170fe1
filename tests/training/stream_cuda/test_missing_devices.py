"""A run is refused where its device is not there."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.stream_options import PlanInput, StreamOptions


def test_a_gpu_that_is_not_there_is_refused_with_the_number_there_is() -> None:
    with pytest.raises(OpenwaferError, match=r"the device 'cuda:99' is not here[^$]*sees \d+ CUDA"):
        PlanInput(StreamOptions(device="cuda:99")).make_device()
