"""A config written as YAML reads back as the same config."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer import config
from openwafer.config import Bytes
from openwafer.source import SourceText


class Mode(StrEnum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True)
class Inner:
    rate: float
    text: str


@dataclass(frozen=True)
class Outer:
    memory: Bytes
    cap: Bytes | None
    mode: Mode
    path: Path
    inner: tuple[Inner, ...]
    named: dict[str, Inner]
    free: object


SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
TREES = st.recursive(SCALARS, lambda t: st.lists(t) | st.dictionaries(st.text(), t), max_leaves=5)
INNERS = st.builds(Inner, st.floats(allow_nan=False), st.text())
OUTERS = st.builds(
    Outer,
    memory=st.integers(0, 2**50),
    cap=st.none() | st.integers(0, 2**50),
    mode=st.sampled_from(Mode),
    path=st.text("abc/. 1", min_size=1).map(Path),
    inner=st.lists(INNERS, max_size=2).map(tuple),
    named=st.dictionaries(st.text(), INNERS, max_size=2),
    free=TREES,
)


@settings(max_examples=25)
@given(OUTERS)
def test_what_is_written_reads_back(outer: Outer) -> None:
    written = SourceText("run.yaml", config.to_yaml(outer))
    assert config.parse(written, Outer) == outer


@pytest.mark.parametrize("text", ["1e-3", "no", "null", "0x1F", "2024-01-01", "", "a: b", "- x"])
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    written = SourceText("run.yaml", config.to_yaml(Inner(1.0, text)))
    assert config.parse(written, Inner).text == text


def test_the_text_is_what_a_person_would_write() -> None:
    inner = (Inner(0.5, "a"),)
    outer = Outer(2**31, 4097, Mode.FAST, Path("runs/a"), inner, {}, {"eps": 1})
    assert config.to_yaml(outer).splitlines() == [
        "memory: 2GiB",
        "cap: 4097B",
        "mode: fast",
        "path: runs/a",
        "inner:",
        "- rate: 0.5",
        "  text: a",
        "named: {}",
        "free:",
        "  eps: 1",
    ]


@given(st.integers(0, 2**60))
def test_a_byte_size_is_written_exactly(num_bytes: int) -> None:
    assert config.parse_bytes(config.exact_bytes(num_bytes)) == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (3 * 2**29, "1536MiB"), (2**40, "1TiB")],
)
def test_a_byte_size_takes_the_largest_unit_that_divides(num_bytes: int, text: str) -> None:
    assert config.exact_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001, "0.001"),
        ("linear", "linear"),
        ("1e-3", "'1e-3'"),
        (None, "null"),
        (True, "true"),
        ("a, b: c", "'a, b: c'"),
        ({"size": 2, "layers": ["a", "b"]}, "{size: 2, layers: [a, b]}"),
    ],
)
def test_a_value_on_one_line_reads_back_behind_a_key(value: object, text: str) -> None:
    @dataclass(frozen=True)
    class Holder:
        value: object = 0

    assert config.to_flow(value) == text
    assert config.parse(SourceText("empty", ""), Holder, (f"value={text}",)).value == value
