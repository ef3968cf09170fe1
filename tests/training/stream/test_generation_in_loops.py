"""A model that streams in a loop of one's own writes by the library's ``generate``."""

from typing import Any

import pytest
import torch

import openwafer
from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Mode
from openwafer.training.stream.stream_options import StreamOptions
from tests.training.architectures import ARCHITECTURES

[LLAMA] = [row for row in ARCHITECTURES if row.name == "llama"]
OPTIONS = StreamOptions(device="cpu", mode=Mode.STREAMED, min_layer_bytes=1)


def streamed(device_memory: str) -> Any:
    """A model that has been planned for its table row's batches."""
    model = LLAMA.build()
    optimizer = torch.optim.SGD(model.parameters())
    openwafer.stream_weights(model, optimizer, device_memory=device_memory, options=OPTIONS)
    model(**LLAMA.batch()).loss.backward()
    optimizer.zero_grad()
    return model.eval()


def written(model: Any, num_tokens: int) -> torch.Tensor:
    prompt = LLAMA.batch()["input_ids"][:, :4]
    mask = torch.ones_like(prompt)
    found: torch.Tensor = model.generate(
        prompt, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, use_cache=True
    )
    return found


def test_it_writes_what_the_plain_model_writes() -> None:
    plain: Any = LLAMA.build().eval()
    assert torch.equal(written(streamed("4MiB"), 12), written(plain, 12))


@pytest.mark.slow
def test_keys_and_values_that_outgrow_the_device_end_it() -> None:
    model = streamed("200KB")
    with pytest.raises(OpenwaferError, match=r"over its budget of 200,000 bytes"):
        written(model, 400)
