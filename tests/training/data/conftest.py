"""One small prepared dataset for all tests that only read it."""

import pytest

from openwafer.training.data import TokenDataset, prepare
from tests.training.data.corpora import small_config, write_texts


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("dataset")
    config = small_config(write_texts(folder / "corpus"), validation_share=0.3)
    return prepare(config, folder / "tokens")
