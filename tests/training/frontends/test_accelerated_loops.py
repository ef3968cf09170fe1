"""A user's loop with accelerate leaves the same bits where its weights stream."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("accelerate", reason="accelerate is not installed")

from accelerate import Accelerator

from openwafer.training.frontends import stream_weights
from tests.training.frontends.trainers import STREAM, build_gpt2, texts

pytestmark = pytest.mark.slow


class Script:
    """A user's script with accelerate."""

    def __init__(self, *, streams: bool, is_prepared_first: bool = True) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = build_gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        loader = torch.utils.data.DataLoader[Any](texts()[:16], batch_size=2)  # type: ignore[arg-type]
        if streams and not is_prepared_first:
            stream_weights(model, optimizer, **STREAM)
        self.model, self.optimizer, self.schedule, self.loader = self.accelerator.prepare(
            model, optimizer, schedule, loader
        )
        if streams and is_prepared_first:
            stream_weights(self.model, self.optimizer, **STREAM)

    def train(self, first: int = 0, last: int = 8) -> "Script":
        for index, batch in enumerate(self.loader):
            if first <= index < last:
                torch.manual_seed(index)
                self.step(batch)
        return self

    def step(self, batch: Any) -> None:
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(**batch).loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()

    def left(self) -> dict[str, Tensor]:
        found = {name: value.clone() for name, value in self.model.state_dict().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            found |= {f"{index}.{key}": value.clone() for key, value in entries.items()}
        return found


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    assert found.keys() == expected.keys()
    return [name for name in expected if not torch.equal(found[name], expected[name])]


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """What the script leaves by itself."""
    return Script(streams=False).train().left()


@pytest.mark.parametrize("is_prepared_first", [True, False])
def test_a_script_of_accelerate_leaves_the_same_bits(
    is_prepared_first: bool, expected: dict[str, Tensor]
) -> None:
    script = Script(streams=True, is_prepared_first=is_prepared_first).train()
    assert apart(script.left(), expected) == []


@pytest.mark.parametrize("begins", [False, True], ids=["before a step", "while it streams"])
def test_a_saved_state_is_gone_on_from(
    begins: bool, expected: dict[str, Tensor], tmp_path: Path
) -> None:
    Script(streams=True).train(last=4).accelerator.save_state(str(tmp_path))
    rest = Script(streams=True)
    if begins:
        rest.train(last=2)
    rest.accelerator.load_state(str(tmp_path))
    assert apart(rest.train(first=4).left(), expected) == []
