"""A shard gives back what was written, and damage to any of its bytes is noticed."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data.shards import (
    HEADER_BYTES,
    Shard,
    TokenisedDocument,
    open_shard,
    write_shard,
)
from tests.training.data.corpora import message

DOCUMENTS = [
    TokenisedDocument(np.array(ids, np.uint32)) for ids in ([1, 2, 3], [4], [5, 6, 7, 65535])
]


def written(path: Path, vocab_size: int = 65536) -> Path:
    write_shard(path, DOCUMENTS, "fingerprint", vocab_size)
    return path


def documents_of(shard: Shard) -> list[list[int]]:
    edges = zip(shard.bounds, shard.bounds[1:], strict=False)
    return [shard.tokens[start:stop].tolist() for start, stop in edges]


def problem_of(path: Path) -> str:
    with pytest.raises(OpenwaferError) as caught:
        open_shard(path)
    return message(caught.value).replace(str(path), "SHARD")


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_marks_of_targets_come_back_from_any_token_on(tmp_path: Path) -> None:
    marked = TokenisedDocument(np.arange(13, dtype=np.uint32), np.arange(13) % 3 == 0)
    write_shard(tmp_path / "a.tokens", [DOCUMENTS[0], marked], "fingerprint", 65536)
    shard = open_shard(tmp_path / "a.tokens")
    expected = [True, True, True, *(n % 3 == 0 for n in range(13))]
    assert shard.header.num_targets == sum(expected)
    for start in range(16):
        assert shard.are_targets(start, 16).tolist() == expected[start:]


def test_a_shard_without_marks_is_of_the_first_version(tmp_path: Path) -> None:
    head = written(tmp_path / "a.tokens").read_bytes()[:HEADER_BYTES]
    assert b'"version":1,' in head
    assert b"num_targets" not in head


@pytest.mark.parametrize("vocab_size", [65536, 65537])
def test_documents_come_back(tmp_path: Path, vocab_size: int) -> None:
    shard = open_shard(written(tmp_path / "a.tokens", vocab_size))
    assert documents_of(shard) == [document.ids.tolist() for document in DOCUMENTS]


def test_a_small_vocabulary_takes_two_bytes_a_token(tmp_path: Path) -> None:
    assert open_shard(written(tmp_path / "a.tokens", 65536)).tokens.dtype == np.uint16


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path) -> None:
    assert open_shard(written(tmp_path / "a.tokens", 65537)).tokens.dtype == np.uint32


def test_the_header_is_readable_json(tmp_path: Path) -> None:
    header = json.loads(written(tmp_path / "a.tokens").read_bytes()[:HEADER_BYTES])
    assert header.pop("checksum") == open_shard(tmp_path / "a.tokens").header.checksum
    assert header == {
        "format": "openwafer-token-shard",
        "version": 1,
        "dtype": "u16",
        "num_tokens": 8,
        "num_documents": 3,
        "tokenizer": "fingerprint",
    }


def test_a_truncated_shard_names_both_sizes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tokens")
    os.truncate(path, path.stat().st_size - 1)
    assert problem_of(path) == (
        "the token shard SHARD is damaged: size: expected 4144 bytes, found 4143 bytes"
    )


def test_a_shard_shorter_than_its_header_names_both_sizes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tokens")
    os.truncate(path, 0)
    assert problem_of(path) == (
        "the token shard SHARD is damaged: size: expected at least 4096 bytes, found 0 bytes"
    )


def test_any_changed_byte_behind_the_header_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tokens")
    content = path.read_bytes()
    for offset in range(HEADER_BYTES, len(content)):
        changed = bytes([content[offset] ^ 1])
        path.write_bytes(content[:offset] + changed + content[offset + 1 :])
        assert problem_of(path).startswith("the token shard SHARD is damaged: checksum: ")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b'"version":1', b'"version":2', "version: expected 1, found 2"),
        (b"token-shard", b"taken-shard", "found 'openwafer-taken-shard'"),
        (b'"u16"', b'"u15"', "dtype: expected u16 or u32, found 'u15'"),
        (
            b'"dtype"',
            b'"dtypo"',
            "JSON of format openwafer-token-shard, found missing key 'dtype'",
        ),
        (b'"num_tokens":8', b'"num_tokens":9', "size: expected 4152 bytes, found 4144 bytes"),
        (b"{", b"[", "header: expected JSON of format openwafer-token-shard, found "),
    ],
)
def test_a_damaged_header_is_noticed(tmp_path: Path, old: bytes, new: bytes, problem: str) -> None:
    path = written(tmp_path / "a.tokens")
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert problem in problem_of(path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    assert problem_of(tmp_path / "a.tokens") == "the token shard SHARD does not exist"


def test_a_write_that_fails_leaves_the_old_shard(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tokens")
    before = path.read_bytes()
    with file_size_limit(1000), pytest.raises(OpenwaferError, match="cannot be written"):
        written(path, vocab_size=65537)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
