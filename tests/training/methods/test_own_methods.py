"""A method in a file of its own: a key, a change of the model, a state, a line in the report."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.methods.seam import Method, MethodRun, RunParts
from openwafer.training.models import UserModule
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.config_sections import CheckpointConfig, StreamingConfig
from openwafer.training.store.parts import Json
from tests.training.session.tiny_model import TinyModel
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_parameters,
    tiny_config,
    train_quietly,
)

RATE = 0.25


class Softening(nn.Module):
    """Divides logits by a temperature."""

    temperature = 1.0

    def forward(self, logits: Tensor) -> Tensor:
        return logits / self.temperature


@dataclass(frozen=True)
class SoftenedConfig(RunConfig):
    """A run whose logits get softer by a rate with each step."""

    soften: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.soften is not None and self.soften < 0:
            raise InvalidFieldError("soften", f"expected a rate from 0 on, found {self.soften}")

    def methods(self) -> tuple[Method, ...]:
        found = super().methods()
        return found if self.soften is None else (*found, Soften(self.soften))


@dataclass(frozen=True)
class Soften(Method):
    rate: float
    key = "soften"

    def shape_forward(self, model: nn.Module, vocab_size: int) -> None:
        softening = Softening()
        model.add_module("softening", softening)
        model.get_submodule("head").register_forward_hook(lambda _, __, out: softening(out))

    def begin(self, run: RunParts) -> MethodRun:
        softening = run.model.get_submodule("softening")
        assert isinstance(softening, Softening)
        return SoftenRun(self.rate, softening)


class SoftenRun(MethodRun):
    saved_as = "soften"

    def __init__(self, rate: float, softening: Softening) -> None:
        self.rate = rate
        self.softening = softening
        self.num_steps = 0

    def end_step(self, scale: float, num_tokens: int) -> None:
        self._go_to(self.num_steps + 1)

    def state(self) -> Json:
        return {"num_steps": self.num_steps}

    def restore(self, state: Json) -> None:
        assert isinstance(state, dict)
        self._go_to(state["num_steps"])

    def summary(self) -> Iterator[str]:
        yield f"logits were divided by {self.softening.temperature}"

    def _go_to(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.softening.temperature = 1 + self.rate * num_steps


class SoftenedModel(TinyModel):
    """The same by hand."""

    temperature = 1.0

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = super().forward(input_ids)["logits"] / self.temperature
        assert labels is not None
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}


@pytest.fixture(scope="module")
def config(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> SoftenedConfig:
    plain = tiny_config(data, tmp_path_factory.mktemp("soft"))
    plain = replace(plain, checkpoint=CheckpointConfig(every=2))
    return SoftenedConfig(
        **{one.name: getattr(plain, one.name) for one in fields(plain)}, soften=RATE
    )


@pytest.fixture(scope="module")
def trained(config: SoftenedConfig) -> TrainResult:
    return train_quietly(config)


def test_a_method_of_ones_own_trains_as_a_loop_that_does_the_same(
    config: SoftenedConfig, trained: TrainResult
) -> None:
    def soften(model: nn.Module) -> None:
        assert isinstance(model, SoftenedModel)
        model.temperature += RATE

    by_hand = replace(config, model=UserModule(f"{__name__}:SoftenedModel"))
    assert differing(saved_parameters(trained), plain_loop(by_hand, soften)) == []


def test_its_state_goes_on_from_a_checkpoint(config: SoftenedConfig, trained: TrainResult) -> None:
    expected = saved_parameters(trained)
    checkpoint = config.path / "checkpoints/step-00000002"
    again = Session(config, console=quiet()).resume(checkpoint)
    assert differing(saved_parameters(again), expected) == []


def test_its_line_stands_in_the_log(trained: TrainResult) -> None:
    assert "logits were divided by 2.0" in (trained.folder / "log.txt").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("soften: much", r"config-type.*: expected a number, found the text 'much'"),
        ("soften: -1", r"config-value.*: soften: expected a rate from 0 on, found -1"),
        ("sofen: 1", r"config-unknown-key.*: no key 'sofen' here[\s\S]*did you mean 'soften'"),
    ],
)
def test_mistakes_at_its_key_are_told_with_their_place(
    trained: TrainResult, tmp_path: Path, text: str, told: str
) -> None:
    written = (trained.folder / "config.yaml").read_text()
    path = tmp_path / "config.yaml"
    path.write_text(written.replace("soften: 0.25", text))
    with pytest.raises(OpenwaferError, match=told) as raised:
        SoftenedConfig.load(path)
    assert raised.value.diagnostics[0].span is not None


def test_stages_refuse_it_as_its_hooks_would_see_a_part_of_the_model(
    config: SoftenedConfig,
) -> None:
    batch = replace(config.batch, micro_batches=2)
    stages = StreamingConfig("cpu", mode=Mode.PIPELINED)
    staged = replace(config, systems=2, batch=batch, streaming=stages)
    with pytest.raises(OpenwaferError, match=r"soften is set and streaming.mode is pipelined: its"):
        Session(staged, console=quiet()).plan()
