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


class SpikingModel(TinyModel):
    """Takes more than the budget in evaluation, and little in training."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        spike = torch.ones(1 if self.training else CAP)
        out = super().forward(input_ids, labels)
        return {**out, "logits": out["logits"] * spike[0]}


def trained(data: TinyData, folder: Path, mode: Mode) -> Session:
    config: RunConfig = tiny_config(data, folder)
    streaming = replace(config.streaming, mode=mode)
    config = replace(config, model=SPIKING, device_memory=Bytes(CAP), streaming=streaming)
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
