"""A run opens at once with what is known, its columns are made behind, and kept beside it."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from safetensors.numpy import load, load_file

from openwafer.atomic_file import write_bytes
from openwafer.cli.view import view
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host.beside import keep_program
from openwafer.sdk.host.journal import read
from openwafer.view.columns import Columns
from openwafer.view.first_look import symbols_of_file
from openwafer.view.following import Live, follow
from openwafer.view.kept import kept_columns, kept_path, mark_of
from openwafer.view.making import made_behind
from openwafer.view.opened import columns_of_run, opened
from openwafer.view.server import Viewer
from openwafer.view.shown import Shown
from tests.view.recorded_runs import RecordedRun

SECONDS = 120.0


@pytest.fixture
def journal(run: RecordedRun, tmp_path: Path) -> Path:
    """The journal of the recorded run, its program beside, in a folder of its own."""
    path = tmp_path / "0000.journal"
    path.write_bytes((run.folder / "run.journal").read_bytes())
    keep_program(run.program, read(path).program, tmp_path)
    return path


@contextmanager
def served(viewer: Viewer) -> Iterator[Viewer]:
    """Context in which a viewer answers."""
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    try:
        yield viewer
    finally:
        viewer.close()
        thread.join()


def keep(run: Path) -> None:
    """Keep columns of a run; of a trace, so that none need be made."""
    columns = Columns({"kind": "trace", "title": "kept", "cycles": 1}, {"a": np.arange(3)})
    kept_path(run).write_bytes(columns.content(mark_of(run)))


def test_columns_are_found_again_until_the_run_changes(journal: Path) -> None:
    assert kept_columns(journal) is None
    keep(journal)
    assert kept_columns(journal) == journal.with_name("0000.journal.view")
    journal.write_bytes(journal.read_bytes() + b" ")
    assert kept_columns(journal) is None


def test_kept_columns_that_were_cut_are_made_again(journal: Path) -> None:
    keep(journal)
    content = kept_path(journal).read_bytes()
    kept_path(journal).write_bytes(content[:-1])
    assert kept_columns(journal) is None


def test_a_run_and_its_folder_open_with_kept_columns(journal: Path) -> None:
    keep(journal)
    shown = opened(journal.parent, lambda runs: runs[0])
    assert shown.content == kept_path(journal)
    assert shown.symbols is not None
    assert symbols_of_file(journal).at((0, 0), 0).cycle == 0


def test_a_first_look_loads_no_simulator(journal: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from openwafer.view.making import made_behind\n"
        "with made_behind(Path(sys.argv[1]), None) as live: live.stamp(), live.open()\n"
        "print({'numba', 'llvmlite', 'openwafer.sdk.fabric.engine'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", script, str(journal)]
    assert subprocess.check_output(command, text=True) == "set()\n"


def test_what_is_shown_stays_where_its_file_is_replaced_or_deleted(journal: Path) -> None:
    keep(journal)
    content = kept_path(journal).read_bytes()
    with served(Viewer(Shown(kept_path(journal)))) as viewer:
        write_bytes(kept_path(journal), b"another run")
        kept_path(journal).unlink()
        with urlopen(f"{viewer.url}run.view", timeout=SECONDS) as answer:
            assert answer.read() == content


def test_a_run_shows_its_host_at_once_and_its_events_are_to_come(journal: Path) -> None:
    with made_behind(journal, None) as live:
        (shown, is_over), doing = live.open(), live.doing()
    assert isinstance(shown.content, bytes)
    assert doing == "The run is done again for this page"
    assert not is_over
    assert "span.begin" not in load(shown.content)
    assert b"CopyTo" in shown.content or b"Launch" in shown.content
    assert not kept_path(journal).exists()


def followed_to_its_end(live: Live) -> Shown:
    """What is shown once there is no more to come."""
    with served(Viewer(live.open()[0], is_live=True)) as viewer:
        assert not follow(viewer, live, threading.Event())
    return viewer.run


def test_a_second_run_of_one_file_is_refused(journal: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"no run 2: .*0000.journal is a file of one run"):
        view(journal, number=2)


@pytest.mark.slow
def test_columns_that_are_made_behind_are_those_that_are_made_at_once(journal: Path) -> None:
    with made_behind(journal, None) as live:
        content = followed_to_its_end(live).content
    assert content == kept_columns(journal) == kept_path(journal)
    found, wanted = load_file(kept_path(journal)), load(columns_of_run(journal, None).content())
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
def test_a_run_that_comes_out_otherwise_is_told_while_its_page_stays(journal: Path) -> None:
    content = journal.read_bytes()
    with made_behind(journal, None) as live:
        journal.write_bytes(content[: len(content) // 2])
        end = time.monotonic() + SECONDS
        while not live.is_over():
            assert time.monotonic() < end
            time.sleep(0.1)
        with pytest.raises(OpenwaferError, match=r"cannot be shown whole: .*damaged"):
            live.open()
