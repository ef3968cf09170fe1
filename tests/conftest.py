"""What holds for every test: nothing reaches the network, runs repeat, cores are shared fairly."""

import gc
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from openwafer.cli.environment import DEFAULTS
from tests import examples
from tests.costs import Counter
from tests.golden_text import GoldenTexts
from tests.wings import TESTS, UNSEEN
from tests.worker_reports import FewReports
from tests.worker_server import WorkerServer

# Processes of tests measure what the command line starts, which need not start itself anew here.
os.environ.update({**DEFAULTS, **os.environ})
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OPENWAFER_CHECK_SCHEDULE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # one core for each process of a parallel run

# A shell starts what runs in its background with Ctrl-C ignored, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What collection leaves, a million objects, lives to the end: no test shall pay for a look at it.
gc.disable()

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden, and tests/budgets.toml with --costs",
    )
    parser.addoption("--costs", action="store_true", help="tell what tests cost, judge by budgets")
    parser.addoption("--wing", choices=UNSEEN, help="leave out what cannot see this wing")


def pytest_configure(config: pytest.Config) -> None:
    is_told, is_updating = map(config.getoption, ("--costs", "--update-golden"))
    config.pluginmanager.register(Counter(is_told, is_updating))
    examples.are_chosen_by(config.getoption("markexpr"))
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(FewReports())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a folder out whose tests cannot see the wing that is asked for."""
    unseen = UNSEEN.get(config.getoption("--wing"), ())
    is_left_out = collection_path.parent == TESTS and collection_path.name in unseen
    return True if is_left_out else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    server = WorkerServer(config.invocation_params.args)
    config.add_cleanup(server.end)
    for spec in specs:
        spec.python = server.command


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> GoldenTexts:
    is_updating: bool = request.config.getoption("--update-golden")
    return GoldenTexts(Path(__file__).parent / "golden", is_updating)
