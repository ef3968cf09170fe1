"""A data set that is streamed is read once, as far as its source says: the tokens are the same."""

import gzip
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataSource, SourceKind, prepare
from openwafer.training.data.documents import read_documents
from tests.training.data.corpora import TEXTS, small_config

needs_datasets = pytest.mark.skipif(not find_spec("datasets"), reason="datasets is not installed")


def stream_of(name: object, num: int = 12) -> DataSource:
    return DataSource(SourceKind.HUGGING_FACE_STREAM, (str(name),), max_documents=num)


def write_lines(folder: Path, *, last: str) -> Path:
    folder.mkdir()
    lines = [json.dumps({"text": text}) for text in TEXTS]
    (folder / "a.jsonl").write_text("\n".join(lines[:12]) + "\n")
    (folder / "b.jsonl").write_text("\n".join([*lines[12:], last]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("paths", "num", "told"),
    [
        (("a", "b"), 1, "streams one data set, and has 2"),
        (("a",), 0, "expected at least 1 for kind 'hugging-face-stream', found 0"),
    ],
)
def test_a_stream_that_is_no_one_or_has_no_end_is_told(
    paths: tuple[str, ...], num: int, told: str
) -> None:
    with pytest.raises(InvalidFieldError, match=told):
        DataSource(SourceKind.HUGGING_FACE_STREAM, paths, max_documents=num)


@pytest.mark.skipif(bool(find_spec("datasets")), reason="datasets is installed")
def test_a_library_that_is_not_installed_is_told_with_what_installs_it() -> None:
    told = r"'some/texts' is to be streamed, and datasets is not installed(.|\n)*pip install dat"
    with pytest.raises(OpenwaferError, match=told):
        list(read_documents(stream_of("some/texts")))


@pytest.mark.slow
@needs_datasets
def test_only_the_rows_that_are_asked_for_are_read(tmp_path: Path) -> None:
    folder = write_lines(tmp_path / "rows", last="no JSON")
    assert [one.text for one in read_documents(stream_of(folder))] == list(TEXTS[:12])


@pytest.mark.slow
@needs_datasets
def test_tokens_are_those_of_the_same_rows_in_a_file_and_are_not_read_again(tmp_path: Path) -> None:
    folder = write_lines(tmp_path / "rows", last="{}")
    of_file = DataSource(SourceKind.JSONL, (str(folder / "a.jsonl"),))
    theirs = prepare(small_config(of_file), tmp_path / "data")
    ours = prepare(small_config(stream_of(folder)), tmp_path / "data")
    for one, two in zip(ours.once(), theirs.once(), strict=True):
        assert one.input_ids.tolist() == two.input_ids.tolist()
    made = (ours.folder / "dataset.json").stat()
    again = prepare(small_config(stream_of(folder)), tmp_path / "data")
    assert again.folder == ours.folder
    assert (again.folder / "dataset.json").stat().st_ino == made.st_ino


@pytest.mark.slow
@needs_datasets
def test_a_folder_that_changes_is_read_again(tmp_path: Path) -> None:
    folder = write_lines(tmp_path / "rows", last="{}")
    once = prepare(small_config(stream_of(folder)), tmp_path / "data")
    lines = (folder / "a.jsonl").read_text().splitlines()
    (folder / "a.jsonl").write_text("\n".join(lines[:6]) + "\n")
    twice = prepare(small_config(stream_of(folder)), tmp_path / "data")
    assert twice.num_tokens != once.num_tokens


@pytest.mark.slow
@needs_datasets
def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    rows = gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode())
    (tmp_path / "rows.jsonl.gz").write_bytes(rows[: len(rows) // 2])
    with pytest.raises(OpenwaferError, match="EOFError: Compressed file ended before"):
        list(read_documents(stream_of(tmp_path)))


@pytest.mark.slow
@needs_datasets
def test_what_the_library_refuses_is_told_with_the_split(tmp_path: Path) -> None:
    folder = write_lines(tmp_path / "rows", last="{}")
    told = rf"datasets cannot stream '{folder}', its subset '', its split 'tset': "
    with pytest.raises(OpenwaferError, match=told):
        list(read_documents(replace(stream_of(folder), split="tset")))
