"""Data that the tests of methods share."""

import pytest

from tests.training.session.tiny_runs import TinyData, make_tiny_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))
