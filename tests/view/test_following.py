"""A run that goes on is shown as far as it has come."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.view.columns import Columns
from openwafer.view.following import Live, first_opened, follow
from openwafer.view.live_record import live_record
from openwafer.view.server import Viewer
from openwafer.view.shown import Shown
from tests.cli.command import run_command
from tests.view.recorded_runs import RecordedRun

SECONDS = 30.0
FLUSHED_SECONDS = 1.1
"""After which few events of a record are written, too."""


def made(cycles: int) -> Shown:
    head = {"kind": "trace", "title": "made", "cycles": cycles, "tracks": [], "names": []}
    return Shown(Columns(head | {"width": 0, "height": 1}, {}).content())


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    """Shows a run that goes on."""
    viewer = Viewer(made(1), is_live=True)
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    yield viewer
    viewer.close()
    thread.join()


def num_spans(run: Shown) -> int:
    assert isinstance(run.content, bytes)
    return len(load(run.content)["span.begin"])


def test_a_record_is_shown_while_it_is_written(run: RecordedRun, tmp_path: Path) -> None:
    live = live_record(tmp_path, run.folder / "out")
    assert live.stamp() == ()
    program = wafer.load(run.folder / "out")
    options = wafer.RuntimeOptions(log_folder=None)
    with program.run(options, record=tmp_path / "run.record") as going:
        going.send("MEMCPYH2D_1", np.ones((1, 1, 4), np.float32), 0, 2)
        going.receive("MEMCPYD2H_1", 4, np.float32, 0, 2)
        time.sleep(FLUSHED_SECONDS)
        going.launch("add", 1.0, 2)
        (part, is_over), before = first_opened(live), live.stamp()
    assert not is_over
    assert live.stamp() != before
    whole, is_over = live.open()
    assert is_over
    assert 0 < num_spans(part) < num_spans(whole)


def test_pages_keep_what_they_show_until_they_load_more(viewer: Viewer) -> None:
    viewer.show(made(2), is_over=False)
    assert viewer.content_of("0") is not None
    viewer.show(made(3), is_over=True)
    assert viewer.content_of("0") is None
    assert viewer.content_of("2") is viewer.content_of("") is not None
    progress = {"version": 2, "is_live": False, "told": "", "doing": ""}
    assert json.loads(viewer.progress()) == progress


def test_a_page_asks_how_far_the_run_is(viewer: Viewer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=SECONDS)
    texts = []
    for name in ("progress", ""):
        connection.request("GET", f"/{viewer.url.split('/')[3]}/{name}")
        texts.append(connection.getresponse().read().decode())
    connection.close()
    assert json.loads(texts[0])["is_live"]
    assert '<body data-live="0" data-doing="">' in texts[1]


def test_more_is_shown_as_files_grow_and_what_is_in_its_way_is_told(viewer: Viewer) -> None:
    stamps = iter([("a",), ("b",), ("c",)])
    told: list[str] = []

    def opened() -> tuple[Shown, bool]:
        told.append(json.loads(viewer.progress())["told"])
        if len(told) == 1:
            raise OSError("it has got its name meanwhile")
        return made(2), True

    follow(viewer, Live(lambda: next(stamps), opened), threading.Event())
    assert told == ["", "it has got its name meanwhile"]
    assert (viewer.version, viewer.is_live) == (1, False)


def test_what_is_no_record_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run.record").write_bytes(b"nothing")
    with pytest.raises(OpenwaferError, match="no openwafer-record"):
        live_record(tmp_path / "run.record", None).open()
    done = run_command("view", tmp_path, "--follow", "--export", tmp_path / "run.html")
    assert "a run that goes on is followed" in done.err
