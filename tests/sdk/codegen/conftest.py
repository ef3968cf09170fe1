"""Object code of tests goes to a folder of their own."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    patch = pytest.MonkeyPatch()
    patch.setenv("OPENWAFER_CACHE", str(tmp_path_factory.mktemp("cache")))
