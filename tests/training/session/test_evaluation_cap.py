"""Passes of evaluation and generation are held to the device budget, too."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from openwafer.config import Bytes
from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import UserModule
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig, Sampling, Session
from tests.tables import case
from tests.training.session.tiny_model import TinyModel
from tests.training.session.tiny_runs import TinyData, quiet, tiny_config, train_quietly

CAP = 1_000_000
SPIKING = UserModule(f"{__name__}:SpikingModel")
GROWING = UserModule(f"{__name__}:GrowingModel")


class SpikingModel(TinyModel):
    """Takes more than the budget in evaluation, and little in training."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        spike = torch.ones(1 if self.training else CAP)
        out = super().forward(input_ids, labels)
        return {**out, "logits": out["logits"] * spike[0]}


class GrowingModel(TinyModel):
    """Keeps some memory more at each call in evaluation, of which no argument tells."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if not self.training:
            self.kept = [*getattr(self, "kept", ()), torch.ones(CAP // 40)]
        return super().forward(input_ids, labels)


def trained(data: TinyData, folder: Path, mode: Mode, model: UserModule = SPIKING) -> Session:
    config: RunConfig = tiny_config(data, folder)
    streaming = replace(config.streaming, mode=mode)
    config = replace(config, model=model, device_memory=Bytes(CAP), streaming=streaming)
    return Session(train_quietly(config).folder, console=quiet(), trusts_code=True)


@pytest.mark.parametrize("mode", [case(m, by_default=m is Mode.STREAMED) for m in Mode])
def test_an_evaluation_above_the_budget_is_refused(
    data: TinyData, tmp_path: Path, mode: Mode
) -> None:
    session = trained(data, tmp_path, mode)
    with pytest.raises(OpenwaferError, match="device-budget-exceeded"):
        session.evaluate()
    with pytest.raises(OpenwaferError, match="device-budget-exceeded"):
        session.generate("3 squared", Sampling(max_new_tokens=2))


def test_a_cache_that_grows_unseen_is_refused_though_all_calls_are_of_one_kind(
    data: TinyData, tmp_path: Path
) -> None:
    session = trained(data, tmp_path, Mode.STREAMED, GROWING)
    session.evaluate(num_batches=2)
    with pytest.raises(OpenwaferError, match="device-budget-exceeded"):
        session.evaluate(num_batches=20)
