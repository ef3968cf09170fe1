"""A measure that a model returns beside its loss is taken on held-out documents."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import UserModule
from openwafer.training.session import Session
from openwafer.training.session.building import prepare_data
from openwafer.training.session.opened_model import held_out
from tests.training.session.tiny_model import TinyModel
from tests.training.session.tiny_runs import TinyData, quiet, tiny_config, train_quietly


class MeasuringModel(TinyModel):
    """Returns the mean of the first token's id."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {**super().forward(input_ids, labels), "first_id": input_ids[:, 0].float().mean()}


@pytest.fixture(scope="module")
def session(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Session:
    config = tiny_config(data, tmp_path_factory.mktemp("measures"))
    config = replace(config, model=UserModule(f"{__name__}:MeasuringModel"), steps=1)
    folder: Path = train_quietly(config).folder
    return Session(folder, console=quiet(), trusts_code=True)


def test_its_mean_is_that_over_the_samples(session: Session) -> None:
    dataset = held_out(prepare_data(session.config, session.folder, lambda text: None))
    first_ids = [int(ids[0]) for batch in dataset.once() for ids in batch.input_ids]
    expected = sum(first_ids) / len(first_ids)
    assert session.evaluate(len(first_ids), measure="first_id") == pytest.approx(expected)


def test_one_that_the_model_does_not_return_is_told(session: Session) -> None:
    with pytest.raises(OpenwaferError, match="the recall in the dict of forward is None"):
        session.evaluate(measure="recall")
