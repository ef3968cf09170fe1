"""A user's own loop builds a model larger than memory, and has the plain loop's bits."""

from pathlib import Path

import pytest
import torch
from torch import nn

import openwafer
from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Mode
from openwafer.training.stream.stream_options import StreamOptions
from tests.own_process import integers_of

SIZE = 160


def built() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(3)))


def trained(model: nn.Module, *, is_streamed: bool) -> dict[str, torch.Tensor]:
    """Weights after two steps."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if is_streamed:
        options = StreamOptions(device="cpu", mode=Mode.STREAMED)
        openwafer.stream_weights(model, optimizer, device_memory="64MiB", options=options)
    for _ in range(2):
        model(torch.ones(2, SIZE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_deferred_model_trains_to_the_bits_of_a_plain_one(
    tmp_path: Path, is_streamed: bool
) -> None:
    with openwafer.deferred_weights(tmp_path, resident_bytes=0):
        model = built()
    found, expected = trained(model, is_streamed=is_streamed), trained(built(), is_streamed=False)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_deferred_weights_are_read_and_saved_like_any(tmp_path: Path) -> None:
    with openwafer.deferred_weights(tmp_path, resident_bytes=0):
        model = built()
        torch.save(model.state_dict(), tmp_path / "inside.pt")
    torch.save(model.state_dict(), tmp_path / "outside.pt")
    expected = built().state_dict()
    for name in ("inside.pt", "outside.pt"):
        found = torch.load(tmp_path / name)
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_folder_in_memory_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"/dev/shm lie in memory.*\n.*folder on a disk"):
        openwafer.deferred_weights(Path("/dev/shm"))


def test_a_deep_model_is_built_and_trained_with_a_few_layers_in_memory(tmp_path: Path) -> None:
    raised_bytes, weights_bytes = integers_of("tests.training.stream.deferred_model", tmp_path, 32)
    # 24 MiB are the store's, 8 MiB the scratch file's.
    assert raised_bytes < 48 << 20 < weights_bytes // 2
