"""Streaming tests compute on one thread, so that the workers of a parallel run do not fight."""

from collections.abc import Iterator

import pytest
import torch

from tests.training.stream.loop_ranks import LoopRanks


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def loop_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopRanks]:
    made = LoopRanks(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()
