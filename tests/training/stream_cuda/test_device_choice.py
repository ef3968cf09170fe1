"""Which device a run gets, and what it is told when there is none."""

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.assemble import StreamOptions, make_device


def test_a_gpu_that_is_not_there_is_refused_with_the_number_there_is() -> None:
    with pytest.raises(OpenwaferError) as caught:
        make_device(StreamOptions(device="cuda:99"))
    assert "the device 'cuda:99' is not here" in str(caught.value)
    assert f"sees {torch.cuda.device_count()} CUDA devices" in str(caught.value)


def test_the_device_is_the_gpu_where_there_is_one() -> None:
    device = make_device(StreamOptions(device="auto"))
    assert device.torch_device.type == ("cuda" if torch.cuda.is_available() else "cpu")
