"""What `openwafer view` opens and writes, and what it says of what it cannot open."""

import base64
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load, load_file

from openwafer.sdk.host.beside import keep_program
from openwafer.sdk.host.journal import read
from openwafer.sdk.program import FILE_NAME
from openwafer.sdk.program import file as programs
from openwafer.trace import Trace
from openwafer.view.training_run import live_training
from tests.cli.command import Done, run_command
from tests.training.metrics.synthetic_run import write_run
from tests.view.recorded_runs import RecordedRun


def view(*arguments: object) -> Done:
    return run_command("view", *arguments)


@pytest.fixture(scope="module")
def exported(run: RecordedRun) -> str:
    """The page of a journal's run, whose program lies in a folder of its own."""
    done = view(run.folder / "run.journal", "--program", run.folder / "out", "--export",
                run.folder / "run.html")  # fmt: skip
    assert (done.code, done.err) == (0, "")
    return (run.folder / "run.html").read_text(encoding="utf-8")


def test_an_exported_page_needs_nothing_beside_it(exported: str) -> None:
    assert re.findall(r"(?:src|href)=\"(?!report)[^\"]*\"", exported) == []
    assert "http:" not in exported
    (imports,) = re.findall(r'<script type="importmap"[^>]*>(.*?)</script>', exported)
    assert {one.split(",")[0] for one in json.loads(imports)["imports"].values()} == {
        "data:text/javascript;base64"
    }


def test_an_exported_page_carries_the_columns_with_cycles_by_line(exported: str) -> None:
    (data,) = re.findall(r'id="data">(.*?)</script>', exported, re.DOTALL)
    content = zlib.decompress(base64.b64decode(data))
    length = int.from_bytes(content[:8], "little")
    head = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["head"])
    files = {head["sources"][file][0].split("/")[-1] for file, *_ in head["lines"]}
    assert "pe.csl" in files
    assert "pass.landed" in load(content)


def test_a_record_opens_with_the_program_beside_it(run: RecordedRun, tmp_path: Path) -> None:
    (tmp_path / "r.record").write_bytes((run.folder / "run.record").read_bytes())
    keep_program(run.program, read(run.folder / "run.journal").program, tmp_path)
    done = view(tmp_path / "r.record", "--export", tmp_path / "r.view")
    assert (done.code, done.out) == (0, f"written: {tmp_path / 'r.view'}\n")
    assert "span.begin" in load_file(tmp_path / "r.view")
    again = view(tmp_path / "r.view", "--export", tmp_path / "again.view")
    assert again.code == 0
    assert (tmp_path / "again.view").read_bytes() == (tmp_path / "r.view").read_bytes()


def test_a_trace_opens_with_its_tracks(tmp_path: Path) -> None:
    trace = Trace()
    trace.span("forward", "compute", 1.0, 1.5, layer="h.0")
    trace.span("h.1", "fetch", 1.25, 1.75)
    trace.write(tmp_path / "trace.json")
    assert view(tmp_path / "trace.json", "--export", tmp_path / "t.view").code == 0
    found = load_file(tmp_path / "t.view")
    assert found["span.begin"].tolist() == [0, 250_000]
    assert found["span.end"].tolist() == [500_000, 750_000]
    assert found["span.first"].tolist() == [0, 1, 2]


def test_a_training_run_opens_with_its_report_and_trace(tmp_path: Path) -> None:
    write_run(tmp_path / "run", num_layers=2, num_steps=4)
    assert view(tmp_path / "run", "--export", tmp_path / "t.html").code == 0
    text = (tmp_path / "t.html").read_text(encoding="utf-8")
    assert 'sandbox srcdoc="' in text
    assert "&lt;!doctype html&gt;" in text.lower()
    live = live_training(tmp_path / "run")
    before, (shown, is_over) = live.stamp(), live.open()
    assert shown.report is not None
    assert not is_over
    with (tmp_path / "run" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert live.stamp() != before


def cut(run: RecordedRun, name: str, folder: Path) -> Path:
    """The first half of a file of the run."""
    content = (run.folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    return folder / name


@pytest.mark.parametrize(
    ("name", "told"),
    [("run.record", "run.record is damaged:"), ("run.journal", "run.journal is damaged:")],
)
def test_a_truncated_recording_is_refused(
    run: RecordedRun, tmp_path: Path, name: str, told: str
) -> None:
    done = view(cut(run, name, tmp_path), "--program", run.folder / "out", "--export", "x.view")
    assert (done.code, told in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.record", "no record", "it is no Arrow IPC file"),
        ("a.view", "no view at all", "is damaged, or no openwafer-view:"),
        ("a.json", "[1, 2]", "is no trace in Chrome's format: Expected `object`"),
        ("a.json", '{"traceEvents": [{"ph": "M"}]}', "none of its 1 events is a span (ph: X)"),
        ("a.bin", None, "there is nothing at"),
        ("a.journal", None, "there is no journal at"),
    ],
    ids=["record", "view", "json", "empty trace", "nothing", "no journal"],
)
def test_what_is_none_of_these_is_told(
    tmp_path: Path, name: str, content: str | None, told: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    done = view(tmp_path / name, "--export", tmp_path / "x.view")
    assert (done.code, told in done.err) == (2, True), done.err


def test_a_run_without_its_program_says_what_is_missing(run: RecordedRun) -> None:
    done = view(run.folder / "run.journal", "--export", run.folder / "x.view")
    assert done.code == 2
    assert "does not lie beside it: there is no" in done.err
    assert "name its folder: --program OUT" in done.err


def test_a_record_of_another_program_is_refused(run: RecordedRun, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    programs.write(replace(run.program, channels=7), tmp_path / "bin" / FILE_NAME)
    done = view(run.folder / "run.record", "--program", tmp_path, "--export", "x.view")
    assert (done.code, "run.record is of the program" in done.err) == (2, True)


def test_a_folder_with_records_and_no_journal_asks_which(run: RecordedRun, tmp_path: Path) -> None:
    (tmp_path / "0000.record").write_bytes((run.folder / "run.record").read_bytes())
    done = view(tmp_path, "--export", tmp_path / "x.view")
    assert (done.code, "has records and no journal" in done.err) == (2, True)


def test_an_export_of_another_form_is_refused(run: RecordedRun, tmp_path: Path) -> None:
    done = view(run.folder / "out", "--export", tmp_path / "x.pdf")
    assert (done.code, "end it with .html for a page by itself" in done.err) == (2, True)
