"""Data that all tests of runs share."""

from collections.abc import Iterator

import pytest
import torch

from openwafer.training.data import train_tokenizer
from tests.training.session.tiny_runs import TinyData

NUM_DOCUMENTS = 40


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    """Texts with more numbers in them than a model of this size learns."""
    folder = tmp_path_factory.mktemp("data")
    tiny = TinyData(folder / "texts", folder / "tokenizer", folder / "tokens")
    for made in (tiny.source, tiny.tokenizer):
        made.mkdir()
    texts = [f"{n} squared is {n * n}, cubed {n**3}; " * 4 for n in range(NUM_DOCUMENTS)]
    for number, text in enumerate(texts):
        (tiny.source / f"{number:03d}.txt").write_text(text)
    train_tokenizer(texts, 280).save(tiny.tokenizer)
    return tiny


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny operators only wait for each other on more threads."""
    earlier = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(earlier)
