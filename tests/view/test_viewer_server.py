"""The server answers its own page on this machine, and nobody else."""

import http.client
import json
import threading
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import pytest
from safetensors.numpy import load

from openwafer.sdk.host.journal import read
from openwafer.view.export import MODULES
from openwafer.view.server import Viewer
from openwafer.view.shown import Shown, Way
from openwafer.view.symbols import Symbols
from openwafer.view.wafer import wafer_columns
from tests.view.recorded_runs import RecordedRun

Answer = tuple[int, bytes, http.client.HTTPMessage]


@pytest.fixture(scope="module")
def viewer(run: RecordedRun) -> Iterator[Viewer]:
    content = wafer_columns(run.program, run.record, None, title="a run").content()
    own = read(run.folder / "run.journal")
    symbols = partial(Symbols, run.program, own)
    viewer = Viewer(Shown(content, symbols, "<p>a report</p>"))
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    yield viewer
    viewer.close()
    thread.join()


def ask(viewer: Viewer, name: str, headers: dict[str, str] | None = None) -> Answer:
    """The answer to a request below the viewer's address, or to a path of its own."""
    path = name if name.startswith("/") else f"/{viewer.url.split('/')[3]}/{name}"
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=60)
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/run.view", "//", "/../run.view"])
def test_a_request_without_the_token_is_refused(viewer: Viewer, path: str) -> None:
    status, text, _ = ask(viewer, path)
    assert status == HTTPStatus.FORBIDDEN
    assert text == b"this is not the address that `openwafer view` has shown\n"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Host": "example.org"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
    ids=lambda headers: "".join(f"{name} {value}" for name, value in headers.items()),
)
def test_a_request_of_a_foreign_origin_is_refused(viewer: Viewer, headers: dict[str, str]) -> None:
    assert ask(viewer, "run.view", headers)[0] == HTTPStatus.FORBIDDEN


def test_the_own_page_may_ask(viewer: Viewer) -> None:
    own = {"Origin": f"http://127.0.0.1:{viewer.port}", "Sec-Fetch-Site": "same-origin"}
    assert ask(viewer, "run.view", own)[0] == HTTPStatus.OK


def test_the_page_names_nothing_outside_and_may_load_nothing_outside(viewer: Viewer) -> None:
    status, text, headers = ask(viewer, "")
    assert status == HTTPStatus.OK
    assert (b"http:" in text, b"https:" in text, b"//" in text) == (False, False, False)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("name", MODULES)
def test_each_module_is_served_and_imports_only_others_of_the_page(
    viewer: Viewer, name: str
) -> None:
    status, text, headers = ask(viewer, f"{name}.js")
    imported = [line.split('"#')[1] for line in text.decode().splitlines() if 'from "#' in line]
    assert status == HTTPStatus.OK
    assert {one.rstrip('";') for one in imported} <= set(MODULES)
    assert headers["Content-Type"].startswith("text/javascript")


def test_columns_come_whole_or_by_ranges(viewer: Viewer) -> None:
    whole = ask(viewer, "run.view")[1]
    status, part, headers = ask(viewer, "run.view", {"Range": "bytes=8-107"})
    assert (status, part) == (HTTPStatus.PARTIAL_CONTENT, whole[8:108])
    assert headers["Content-Range"] == f"bytes 8-107/{len(whole)}"
    assert ask(viewer, "run.view", {"Range": f"bytes={len(whole) - 4}-"})[1] == whole[-4:]
    assert "span.first" in load(whole)


def test_what_is_not_there_is_said(viewer: Viewer) -> None:
    size = len(ask(viewer, "run.view")[1])
    status, text, _ = ask(viewer, "run.view", {"Range": f"bytes={size}-{size + 5}"})
    assert (status, text.startswith(f"bytes {size} to".encode())) == (416, True)
    assert ask(viewer, "style.css")[:2] == (404, b"there is no such file\n")
    assert ask(viewer, "symbols?x=a")[:2] == (
        400,
        (
            b"symbols?x=COLUMN&y=ROW&cycle=CYCLE[&way=0 to 4][&source=N&line=N][&page=N],"
            b" as numbers, of ways to lines [&condition=TEXT]\n"
        ),
    )


def test_a_report_is_a_page_without_scripts(viewer: Viewer) -> None:
    status, text, headers = ask(viewer, "report.html")
    assert (status, text) == (HTTPStatus.OK, b"<p>a report</p>")
    assert "script-src" not in headers["Content-Security-Policy"]


def looked(viewer: Viewer, **query: int | str) -> Any:
    text = urlencode(query)
    return json.loads(ask(viewer, f"symbols?{text}")[1])


def test_a_pe_is_stepped_both_ways_from_a_cycle(viewer: Viewer) -> None:
    begun = looked(viewer, x=0, y=0, cycle=0, way=Way.STEP)
    second = looked(viewer, x=0, y=0, cycle=begun["cycle"], way=Way.STEP)
    back = looked(viewer, x=0, y=0, cycle=second["cycle"], way=Way.STEP_BACK)
    assert begun["told"] == "behind a step"
    assert begun["place"] == back["place"] != second["place"]
    assert [name for name, _ in back["machine"]][:2] == ["operations", "tasks"]


def test_a_pe_goes_to_a_line_both_ways(viewer: Viewer) -> None:
    source, line = looked(viewer, x=0, y=0, cycle=0, way=Way.STEP)["place"]
    at = {"x": 0, "y": 0, "source": source, "line": line}
    assert looked(viewer, cycle=10_000, way=Way.LINE_BACK, **at)["place"] == [source, line]
    assert looked(viewer, cycle=0, way=Way.LINE, **at)["place"] == [source, line]
    refused = looked(viewer, cycle=0, way=Way.LINE, **(at | {"line": 9999}))["error"]
    assert "has no code from line 9999 on" in refused
    refused = looked(viewer, cycle=0, way=Way.LINE, **(at | {"source": 99}))["error"]
    assert "there is no source 99" in refused


def test_a_pe_goes_to_a_line_where_a_condition_holds(viewer: Viewer) -> None:
    source, line = looked(viewer, x=0, y=0, cycle=0, way=Way.STEP)["place"]
    at = {"x": 0, "y": 0, "cycle": 0, "way": Way.LINE, "source": source, "line": line}
    held = looked(viewer, **at, condition="single[0] == 0.0")
    never = looked(viewer, **at, condition="single[0] == 9.0")
    assert held["place"] == [source, line] != never["place"]
    assert held["cycle"] < never["cycle"]
    assert "'1 +' cannot be worked out" in looked(viewer, **at, condition="1 +")["told"]


def test_a_page_is_told_that_another_one_moved_the_run(viewer: Viewer) -> None:
    first = looked(viewer, x=0, y=0, cycle=0, way=Way.STEP, page=1)
    other = looked(viewer, x=0, y=0, cycle=first["cycle"], way=Way.STEP, page=2)
    again = looked(viewer, x=0, y=0, cycle=other["cycle"], way=Way.STEP, page=2)
    assert "another page had moved the run" in other["told"]
    assert "another page" not in again["told"]


@pytest.mark.parametrize(
    "query", ["way=9", "way=3", "way=3&line=2", "way=3&source=1", "condition=1"]
)
def test_no_way_is_refused(viewer: Viewer, query: str) -> None:
    assert ask(viewer, f"symbols?x=0&y=0&cycle=1&{query}")[0] == HTTPStatus.BAD_REQUEST


def test_symbols_are_those_of_the_pe_at_the_cycle(viewer: Viewer) -> None:
    symbols = {}
    for cycle in (0, 10_000):
        found = json.loads(ask(viewer, f"symbols?x=0&y=0&cycle={cycle}")[1])
        symbols[cycle] = {one["name"]: one["text"] for one in found["symbols"]}
    assert symbols[0]["single"] == "{ 0, 0, 0 }"
    assert symbols[10_000]["single"] == "{ 1, 1, 1 }"


def test_a_pe_outside_is_refused_with_the_size(viewer: Viewer) -> None:
    found = json.loads(ask(viewer, "symbols?x=9&y=0&cycle=5")[1])
    assert "there is no PE (9, 0): the program has" in found["error"]
