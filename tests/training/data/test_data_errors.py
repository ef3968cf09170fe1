"""A mistake in the data says where it is, what is wrong, both values and the remedy."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataConfig, DataSource, Sampling, SourceKind, TokenizerTraining
from openwafer.training.data.documents import read_documents as read
from tests.training.data.corpora import message, save_dataset, write_parquet, write_texts


def problem_of(kind: SourceKind, path: Path, column: str = "text") -> OpenwaferError:
    with pytest.raises(OpenwaferError) as caught:
        list(read(DataSource(kind, (str(path),), column=column)))
    return caught.value


def jsonl_problem(tmp_path: Path, content: bytes) -> str:
    file = tmp_path / "a.jsonl"
    file.write_bytes(content)
    return message(problem_of(SourceKind.JSONL, file)).replace(f"{tmp_path}/", "")


def parquet_problem(tmp_path: Path, table: pa.Table) -> str:
    file = tmp_path / "a.parquet"
    pq.write_table(table, file)
    return message(problem_of(SourceKind.PARQUET, file)).replace(f"{tmp_path}/", "")


def test_bad_utf8_names_file_byte_offset_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("café".encode("latin-1"))
    assert str(problem_of(SourceKind.TEXT, file)) == (
        f"error[bad-utf8]: {file}: byte 0xe9 at offset 3 is no UTF-8: unexpected end of data\n"
        "  = help: convert the file to UTF-8 (iconv -f latin1 -t utf-8), "
        "or leave it out with a glob"
    )


def test_bad_utf8_behind_a_separator_is_placed_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one--t\xffo")
    with pytest.raises(OpenwaferError, match="byte 0xff at offset 6 is no UTF-8"):
        list(read(DataSource(SourceKind.TEXT, (str(tmp_path / "a.txt"),), separator="--")))


def test_a_dataset_whose_file_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    save_dataset(tmp_path / "saved")
    (tmp_path / "saved/state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
    found = message(problem_of(SourceKind.HUGGING_FACE, tmp_path / "saved"))
    assert found.startswith(f"{tmp_path}/saved/state.json names the file '../x.arrow', which does")


def test_a_line_that_is_no_json_is_named_with_its_column(tmp_path: Path) -> None:
    found = jsonl_problem(tmp_path, b'{"text": "a"}\n{"text": oops}\n')
    assert found == "a.jsonl:2:10: the line is no JSON: Expecting value"


def test_a_line_that_is_nested_too_deep_is_named(tmp_path: Path) -> None:
    found = jsonl_problem(tmp_path, b'{"text": ' + b"[" * 100_000 + b"\n")
    assert found == "a.jsonl:1: the line is nested too deep to be read"


def test_a_line_that_is_no_object_is_shown(tmp_path: Path) -> None:
    found = jsonl_problem(tmp_path, b"[1, 2]\n")
    assert found == "a.jsonl:1: expected a JSON object, found [1, 2]"


def test_a_missing_field_lists_the_fields_there_are(tmp_path: Path) -> None:
    found = jsonl_problem(tmp_path, b'{"text": "a"}\n{"txt": "b", "id": 2}\n')
    assert found == "a.jsonl:2: the object has no field 'text'; it has 'txt', 'id'"


def test_a_missing_field_suggests_the_closest(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"txt": "b", "id": 2}\n')
    help = problem_of(SourceKind.JSONL, file).diagnostics[0].help
    assert help == "set column to the one with the text or chat; did you mean 'txt'?"


def test_a_field_that_is_no_text_is_shown(tmp_path: Path) -> None:
    found = jsonl_problem(tmp_path, b'{"text": 42}\n')
    assert found == "a.jsonl:1: 'text' holds int 42, expected a text or a chat"


def test_half_a_surrogate_pair_is_no_character(tmp_path: Path) -> None:
    found = jsonl_problem(tmp_path, rb'{"text": "ab\ud83d"}')
    assert found == (
        "a.jsonl:1: character 2 of 'text' is '\\ud83d', half of a surrogate pair, "
        "which is no character"
    )


def test_a_jsonl_line_of_bad_utf8_is_named(tmp_path: Path) -> None:
    found = jsonl_problem(tmp_path, b'{"text": "a"}\n{"text": "\xff"}\n')
    assert found == "a.jsonl:2: byte 0xff at offset 10 is no UTF-8: invalid start byte"


def test_a_missing_parquet_column_lists_the_columns_there_are(tmp_path: Path) -> None:
    found = parquet_problem(tmp_path, pa.table({"id": [1], "body": ["a"]}))
    assert found == "a.parquet has no column 'text'; it has 'id', 'body'"


def test_a_column_of_numbers_is_refused(tmp_path: Path) -> None:
    found = parquet_problem(tmp_path, pa.table({"text": [1, 2]}))
    assert found == "column 'text' of a.parquet holds int64, expected string, or a list of messages"


def test_a_null_row_is_named(tmp_path: Path) -> None:
    found = parquet_problem(tmp_path, pa.table({"text": ["a", None]}))
    assert found == "a.parquet: row 2: 'text' holds null, expected a text or a chat"


def test_a_string_column_of_bad_utf8_is_unreadable(tmp_path: Path) -> None:
    texts = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    found = parquet_problem(tmp_path, pa.table({"text": texts}))
    assert found.startswith("a.parquet cannot be read as parquet data: 'utf-8' codec can't decode")


def test_a_truncated_parquet_file_is_unreadable(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet")
    os.truncate(tmp_path / "a.parquet", 100)
    found = message(problem_of(SourceKind.PARQUET, tmp_path / "a.parquet"))
    assert found.startswith(f"{tmp_path}/a.parquet cannot be read as parquet data: ")


def test_a_truncated_arrow_file_is_unreadable(tmp_path: Path) -> None:
    save_dataset(tmp_path / "saved", num_files=1)
    file = tmp_path / "saved/data-00000-of-00001.arrow"
    os.truncate(file, file.stat().st_size // 2)
    found = message(problem_of(SourceKind.HUGGING_FACE, tmp_path / "saved"))
    assert found.startswith(f"{file} cannot be read as hugging-face data: ")


def test_a_corpus_of_blank_files_is_empty(tmp_path: Path) -> None:
    write_texts(tmp_path / "corpus", ["", " \n"])
    assert message(problem_of(SourceKind.TEXT, tmp_path / "corpus")) == (
        "the data source 'text' holds no text: 2 files read, 0 documents with a visible character"
    )


def test_a_path_that_matches_nothing_is_named(tmp_path: Path) -> None:
    problem = problem_of(SourceKind.TEXT, tmp_path / "*.txt")
    assert message(problem) == f"no data file matches '{tmp_path}/*.txt'"
    assert problem.diagnostics[0].notes == (f"relative paths start at {Path.cwd()}",)


def test_a_folder_without_files_of_the_kind_is_named(tmp_path: Path) -> None:
    found = message(problem_of(SourceKind.JSONL, tmp_path))
    assert found == f"no data file matches '{tmp_path}/**/*.jsonl'"


def test_a_library_glob_that_matches_nothing_is_named() -> None:
    with pytest.raises(OpenwaferError, match=r"library matches 'nothing/\*\.py' in /"):
        list(read(DataSource(SourceKind.STANDARD_LIBRARY, ("nothing/*.py",))))


def test_a_folder_that_is_no_saved_dataset_is_refused(tmp_path: Path) -> None:
    found = message(problem_of(SourceKind.HUGGING_FACE, tmp_path))
    assert found == f"{tmp_path} is no saved Hugging Face dataset: it has no state.json"


def test_a_missing_arrow_file_of_a_saved_dataset_is_named(tmp_path: Path) -> None:
    save_dataset(tmp_path / "saved", num_files=1)
    file = tmp_path / "saved/data-00000-of-00001.arrow"
    file.unlink()
    found = message(problem_of(SourceKind.HUGGING_FACE, tmp_path / "saved"))
    assert found == f"{file} is missing, but {tmp_path}/saved/state.json lists it"


def test_a_dataset_with_reordered_rows_is_refused(tmp_path: Path) -> None:
    save_dataset(tmp_path / "saved")
    state_file = tmp_path / "saved/state.json"
    state = json.loads(state_file.read_text()) | {"_indices_data_files": [{"filename": "i"}]}
    state_file.write_text(json.dumps(state))
    found = message(problem_of(SourceKind.HUGGING_FACE, tmp_path / "saved"))
    assert found == f"{state_file} reorders its rows by an index table, which is not read here"


def test_a_damaged_state_file_is_no_json(tmp_path: Path) -> None:
    save_dataset(tmp_path / "saved")
    (tmp_path / "saved/state.json").write_text("{")
    found = message(problem_of(SourceKind.HUGGING_FACE, tmp_path / "saved"))
    assert found.startswith(f"{tmp_path}/saved/state.json: not JSON: ")


def test_an_unknown_split_suggests_the_closest(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(OpenwaferError) as caught:
        list(read(DataSource(SourceKind.HUGGING_FACE, (str(tmp_path),), split="tset")))
    assert str(caught.value) == (
        f"error[no-such-split]: the dataset {tmp_path} has no split 'tset'\n"
        "  = help: did you mean 'test'?"
    )


def test_files_need_paths() -> None:
    with pytest.raises(InvalidFieldError, match="paths: a source of kind 'jsonl' needs some"):
        DataSource(SourceKind.JSONL)


def test_an_option_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="separator: means nothing for kind 'jsonl', only"):
        DataSource(SourceKind.JSONL, ("a",), separator="\n")


def test_a_vocabulary_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="vocab_size: expected at least 257, found 256"):
        TokenizerTraining(vocab_size=256)


def test_a_sequence_of_one_token_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="sequence_length: expected at least 2, found 1"):
        Sampling(sequence_length=1)


def test_a_validation_share_of_everything_is_refused() -> None:
    source = DataSource(SourceKind.STANDARD_LIBRARY)
    with pytest.raises(InvalidFieldError, match=r"expected at least 0 and below 1, found 1\.0"):
        DataConfig(source, validation_share=1.0)


def test_a_split_of_an_undivided_dataset_is_refused(tmp_path: Path) -> None:
    save_dataset(tmp_path / "saved")
    source = DataSource(SourceKind.HUGGING_FACE, (f"{tmp_path}/saved",), split="test")
    message = "saved is not divided into splits, so that it has no 'test'\n.*help: leave split out"
    with pytest.raises(OpenwaferError, match=message):
        list(read(source))


def test_a_folder_above_a_saved_dataset_names_it(tmp_path: Path) -> None:
    save_dataset(tmp_path / "saved")
    notes = problem_of(SourceKind.HUGGING_FACE, tmp_path).diagnostics[0].notes
    assert notes == (f"there is one in {tmp_path}/saved",)


def test_a_dataset_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = message(problem_of(SourceKind.HUGGING_FACE, tmp_path / "none"))
    assert found == f"no data folder matches '{tmp_path}/none'"


CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


@pytest.mark.parametrize("kind", [SourceKind.JSONL, SourceKind.PARQUET])
def test_chats_in_another_column_are_named(kind: SourceKind, tmp_path: Path) -> None:
    file = tmp_path / f"a.{kind}"
    if kind is SourceKind.JSONL:
        file.write_text(json.dumps({"messages": CHAT}))
    else:
        pq.write_table(pa.table({"messages": [CHAT]}), file)
    assert "set column to the one with the chats, 'messages'" in str(problem_of(kind, file))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"from": "bot", "value": "hi"}, "is from 'bot', expected human, user, gpt, assistant"),
        ({"role": "user", "content": None}, "its content is None, expected a text"),
        ("hello", "expected an object with role and content, found 'hello'"),
    ],
)
def test_a_message_without_role_or_text_is_told_with_its_number(
    message: object, told: str, tmp_path: Path
) -> None:
    found = jsonl_problem(tmp_path, json.dumps({"text": [*CHAT, message]}).encode())
    assert "a.jsonl:1: 'text', message 3" in found
    assert told in found


def test_a_list_is_counted_and_an_object_told_by_its_fields(tmp_path: Path) -> None:
    found = jsonl_problem(tmp_path, json.dumps({"text": ["word"] * 900}).encode())
    assert found == "a.jsonl:1: 'text' holds a list of 900 items, expected a text or a chat"
    found = jsonl_problem(tmp_path, b'{"text": {"en": "a", "de": "b"}}')
    assert found == "a.jsonl:1: 'text' holds an object with 'en', 'de', expected a text or a chat"


def test_a_column_of_lists_is_told_to_be_joined(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [["a", "b"]]}), tmp_path / "a.parquet")
    problem = str(problem_of(SourceKind.PARQUET, tmp_path / "a.parquet"))
    assert "join the items of each list to one text" in problem
