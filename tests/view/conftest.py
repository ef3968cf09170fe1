"""One recorded run for all tests of the viewer."""

import pytest

from tests.view.recorded_runs import RecordedRun, recorded_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """The recorded run."""
    return recorded_run(tmp_path_factory.mktemp("viewed"))
