"""Object code of these tests goes to a folder of their own, and that of those behind them not."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENWAFER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
