"""Documents of every kind of source come back as they were written, in a fixed order."""

import itertools
import json
import sysconfig
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataSource, SourceKind
from openwafer.training.data.documents import pieces_between, read_documents
from openwafer.training.data.sources import fingerprint, list_files
from tests.training.data.corpora import (
    TEXTS,
    save_dataset,
    write_jsonl,
    write_parquet,
    write_texts,
)

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def texts_of(source: DataSource) -> list[str]:
    return [document.text for document in read_documents(source)]


def names_of(source: DataSource) -> list[str]:
    return [file.name for file in list_files(source)]


def test_text_files_come_back_in_sorted_order(tmp_path: Path) -> None:
    assert texts_of(write_texts(tmp_path / "corpus")) == list(TEXTS)


def test_jsonl_lines_come_back(tmp_path: Path) -> None:
    assert texts_of(write_jsonl(tmp_path / "a.jsonl", column="body")) == list(TEXTS)


def test_parquet_rows_come_back(tmp_path: Path) -> None:
    assert texts_of(write_parquet(tmp_path / "a.parquet", column="body")) == list(TEXTS)


def test_rows_of_a_saved_hugging_face_dataset_come_back(tmp_path: Path) -> None:
    assert texts_of(save_dataset(tmp_path / "saved")) == list(TEXTS)


def test_a_split_of_a_saved_dataset_dict_is_read(tmp_path: Path) -> None:
    save_dataset(tmp_path / "saved/train", TEXTS[:4])
    save_dataset(tmp_path / "saved/test", TEXTS[4:8])
    (tmp_path / "saved/dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    source = DataSource(SourceKind.HUGGING_FACE, (str(tmp_path / "saved"),), split="test")
    assert texts_of(source) == list(TEXTS[4:8])


def test_a_glob_over_saved_datasets_reads_them_by_name(tmp_path: Path) -> None:
    save_dataset(tmp_path / "b", TEXTS[:4])
    save_dataset(tmp_path / "a", TEXTS[4:8])
    source = DataSource(SourceKind.HUGGING_FACE, (f"{tmp_path}/*",))
    assert texts_of(source) == [*TEXTS[4:8], *TEXTS[:4]]


def test_categorical_and_large_strings_are_texts_too(tmp_path: Path) -> None:
    kinds = (pa.dictionary(pa.int32(), pa.string()), pa.large_string())
    for number, kind in enumerate(kinds):
        pq.write_table(
            pa.table({"text": pa.array(TEXTS).cast(kind)}), tmp_path / f"{number}.parquet"
        )
    source = DataSource(SourceKind.PARQUET, (str(tmp_path),))
    assert texts_of(source) == [*TEXTS, *TEXTS]


def test_a_document_knows_its_file_and_line(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl")
    origins = [(document.path.name, document.row) for document in read_documents(source)]
    assert origins == [("a.jsonl", row) for row in range(1, 21)]


def test_source_bytes_of_text_documents_add_up_to_the_file_sizes(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "corpus", ["déjà vu", "日本語", "plain"])
    expected = sum(file.stat().st_size for file in list_files(source))
    assert sum(document.source_bytes for document in read_documents(source)) == expected


def test_a_separator_cuts_a_file_into_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n---\ntwo\n---\n\n---\nthree")
    source = DataSource(SourceKind.TEXT, (str(tmp_path / "a.txt"),), separator="\n---\n")
    assert texts_of(source) == ["one", "two", "three"]


def test_the_letters_of_a_fasta_file_come_back_record_by_record(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text("\n>one protein\nMKT\nAYI\n\n>two\n>three\r\nGG\r\n")
    source = DataSource(SourceKind.FASTA, (str(tmp_path),))
    found = [(document.text, document.row) for document in read_documents(source)]
    assert found == [("MKTAYI", 1), ("GG", 3)]


def test_letters_before_the_first_record_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text("\nMKT\n>one\nAYI\n")
    source = DataSource(SourceKind.FASTA, (str(tmp_path),))
    with pytest.raises(OpenwaferError, match=r"a\.fasta:2: letters without a description: MKT"):
        list(read_documents(source))


@pytest.mark.parametrize("read_bytes", [1, 2, 3, 5, 100])
def test_a_file_is_cut_alike_however_much_is_read_at_once(tmp_path: Path, read_bytes: int) -> None:
    data = "été==été===日本==\u2028==".encode()
    (tmp_path / "a.txt").write_bytes(data)
    found = list(pieces_between(tmp_path / "a.txt", b"==", read_bytes=read_bytes))
    assert found == data.split(b"==")


def test_a_file_larger_than_a_read_is_not_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with file.open("w") as writing:
        for _ in range(64):
            writing.write("x" * (512 << 10) + "\n\n")
    source = DataSource(SourceKind.TEXT, (str(file),), separator="\n\n")
    tracemalloc.start()
    num_documents = sum(1 for _ in read_documents(source))
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (num_documents, most_bytes < 8 << 20) == (64, True)


def test_blank_documents_are_left_out(tmp_path: Path) -> None:
    assert texts_of(write_texts(tmp_path / "corpus", ["", "a", " \n\t", "b"])) == ["a", "b"]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabc")
    assert texts_of(DataSource(SourceKind.TEXT, (str(tmp_path / "a.txt"),))) == ["abc"]


def test_blank_lines_of_a_jsonl_file_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n  \n{"text": "b"}')
    assert texts_of(DataSource(SourceKind.JSONL, (str(tmp_path / "a.jsonl"),))) == ["a", "b"]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    write_texts(tmp_path / "corpus", ["a", "b", "c"])
    paths = (f"{tmp_path}/corpus/002.txt", f"{tmp_path}/corpus/*.txt", f"{tmp_path}/corpus")
    assert names_of(DataSource(SourceKind.TEXT, paths)) == ["002.txt", "000.txt", "001.txt"]


def test_a_folder_is_searched_below_but_not_in_hidden_places(tmp_path: Path) -> None:
    for name in ("b/deep/x.txt", "a.txt", ".git/no.txt", "b/.hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    assert names_of(DataSource(SourceKind.TEXT, (str(tmp_path),))) == ["a.txt", "x.txt"]


def test_a_folder_gives_only_files_of_the_kind(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    write_parquet(tmp_path / "b.parquet")
    assert names_of(DataSource(SourceKind.PARQUET, (str(tmp_path),))) == ["b.parquet"]


def test_the_standard_library_is_really_read() -> None:
    source = DataSource(SourceKind.STANDARD_LIBRARY, ("json/*.py",))
    read = {document.path: document.text for document in read_documents(source)}
    decoder = STANDARD_LIBRARY / "json/decoder.py"
    assert read[decoder] == decoder.read_text(encoding="utf-8")


def test_the_standard_library_is_large_and_sorted() -> None:
    files = list_files(DataSource(SourceKind.STANDARD_LIBRARY))
    assert len(files) > 300
    assert list(files) == sorted(files, key=Path.as_posix)


def test_the_standard_library_leaves_out_packages_and_tests() -> None:
    files = list_files(DataSource(SourceKind.STANDARD_LIBRARY))
    parts = itertools.chain(*(file.relative_to(STANDARD_LIBRARY).parts for file in files))
    assert {"site-packages", "dist-packages", "test", "tests"}.isdisjoint(parts)


def test_the_fingerprint_changes_with_a_file(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "corpus")
    files = list_files(source)
    before = fingerprint(source, files)
    files[3].write_text("something else, of another size")
    assert fingerprint(source, files) != before


def test_the_fingerprint_changes_with_the_settings(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl")
    files = list_files(source)
    other = DataSource(SourceKind.JSONL, source.paths, column="other")
    assert fingerprint(source, files) != fingerprint(other, files)
