"""Data that all tests of runs share."""

from collections.abc import Iterator

import pytest
import torch

from tests.training.session.follower_pool import FollowerPool
from tests.training.session.tiny_runs import TinyData, make_tiny_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def pool() -> Iterator[FollowerPool]:
    made = FollowerPool()
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny operators only wait for each other on more threads."""
    earlier = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(earlier)
