"""Files of torch.distributed.checkpoint and safetensors, written and read while weights stream."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Mode
from openwafer.training.stream import StreamOptions
from tests.tables import case, checkerboard
from tests.training.stream.small_gpt import adamw, build_gpt, gpt_loss, gpt_run

BATCHES = [gpt_run().batch(step, 0) for step in range(4)]

# Without a process group it says that it saves for this process alone.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed:UserWarning")


class Loop:
    """A model and an optimizer that take steps."""

    def __init__(self, *, streams: bool) -> None:
        self.model: nn.Module = build_gpt()
        self.optimizer = adamw(self.model)
        if streams:
            self.stream()

    def stream(self) -> "Loop":
        options = StreamOptions(mode=Mode.STREAMED, host_memory_bytes=1 << 28)
        stream_weights(self.model, self.optimizer, device_memory="1MiB", options=options)
        return self

    def train(self, first: int, last: int) -> "Loop":
        for index, batch in enumerate(BATCHES[first:last], first):
            torch.manual_seed(index)
            gpt_loss(self.model, batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def left(self) -> dict[str, Tensor]:
        found = {name: value.clone() for name, value in self.model.state_dict().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            found |= {f"{index}.{key}": value.clone() for key, value in entries.items()}
        return found


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    assert found.keys() == expected.keys()
    return [name for name in expected if not torch.equal(found[name], expected[name])]


def parts_of(loop: Loop) -> dict[str, Any]:
    weights, states = get_state_dict(loop.model, loop.optimizer)
    return {"weights": weights, "states": states}


def read_distributed(loop: Loop, folder: Path) -> None:
    parts = parts_of(loop)
    state_dict_loader.load(parts, checkpoint_id=folder)
    set_state_dict(
        loop.model,
        loop.optimizer,
        model_state_dict=parts["weights"],
        optim_state_dict=parts["states"],
    )


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """What four steps leave."""
    return Loop(streams=False).train(0, 4).left()


@pytest.mark.parametrize(
    "streams", [True, case(False, by_default=False)], ids=["streamed", "plain"]
)
def test_a_distributed_checkpoint_of_a_streamed_loop_is_gone_on_from(
    streams: bool, expected: dict[str, Tensor], tmp_path: Path
) -> None:
    state_dict_saver.save(parts_of(Loop(streams=True).train(0, 2)), checkpoint_id=tmp_path)
    rest = Loop(streams=False)
    read_distributed(rest, tmp_path)
    if streams:
        rest.stream()
    assert apart(rest.train(2, 4).left(), expected) == []


def test_a_distributed_checkpoint_is_read_while_weights_stream(
    expected: dict[str, Tensor], tmp_path: Path
) -> None:
    state_dict_saver.save(parts_of(Loop(streams=False).train(0, 2)), checkpoint_id=tmp_path)
    rest = Loop(streams=True).train(0, 3)
    read_distributed(rest, tmp_path)
    assert apart(rest.train(2, 4).left(), expected) == []


def save_weights(model: nn.Module, path: Path) -> None:
    save_file(model.state_dict(), path)


def save_whole(model: nn.Module, path: Path) -> None:
    save_model(model, str(path))


def load_weights(model: nn.Module, path: Path) -> None:
    model.load_state_dict(load_file(path))


def load_whole(model: nn.Module, path: Path) -> None:
    load_model(model, path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "load"), checkerboard((save_weights, save_whole), (load_weights, load_whole), one_in=4)
)
def test_weights_leave_and_enter_the_store_by_safetensors(
    save: Callable[[nn.Module, Path], None],
    load: Callable[[nn.Module, Path], None],
    tmp_path: Path,
) -> None:
    saved, expected = Loop(streams=True).train(0, 2), Loop(streams=False).train(0, 2)
    save(saved.model, tmp_path / "weights.safetensors")
    other = Loop(streams=True).train(2, 3)
    load(other.model, tmp_path / "weights.safetensors")
    found = {name: value.clone() for name, value in other.model.state_dict().items()}
    assert apart(found, dict(expected.model.state_dict())) == []


def test_a_step_is_exported_while_the_next_ones_train(
    expected: dict[str, Tensor], tmp_path: Path
) -> None:
    loop, plain = Loop(streams=True).train(0, 2), Loop(streams=False).train(0, 2)
    save_file(dict(loop.model.state_dict()), tmp_path / "second.safetensors")
    assert apart(loop.train(2, 4).left(), expected) == []
    assert apart(load_file(tmp_path / "second.safetensors"), dict(plain.model.state_dict())) == []
