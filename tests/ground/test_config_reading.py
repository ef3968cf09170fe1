"""Values from YAML, by the annotations of frozen dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from openwafer import config
from openwafer.config import Bytes
from openwafer.source import SourceText


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True)
class AdamW:
    kind: Literal["adamw"] = "adamw"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Sgd:
    kind: Literal["sgd"]
    learning_rate: float = 1e-2


@dataclass(frozen=True)
class Folder:
    path: Path
    shuffle: bool = False


@dataclass(frozen=True)
class Inline:
    texts: tuple[str, ...] = ()
    shuffle: bool = False


@dataclass(frozen=True)
class Run:
    steps: int = 1
    memory: Bytes = 0
    cap: Bytes | None = 7
    scale: float = 1.0
    name: str = ""
    fast: bool = False
    every: Literal[1, 2, "auto"] = 1
    precision: Precision = Precision.FP32
    optimizer: AdamW | Sgd = AdamW()
    data: Folder | Inline | str = ""
    files: tuple[Path, ...] = ()
    groups: dict[str, Sgd] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    model: dict[str, object] = field(default_factory=dict)
    any_number: int | float | str = 0
    num_seen: int = field(default=0, init=False)


def read(text: str, *overrides: str) -> Run:
    return config.parse(SourceText("run.yaml", text), Run, overrides)


def test_an_empty_file_gives_the_defaults() -> None:
    assert read("# nothing here\n") == Run()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps: 1_000", Run(steps=1000)),
        ("steps: 0x10", Run(steps=16)),
        ("steps: -3", Run(steps=-3)),
        ("scale: 1e-3", Run(scale=0.001)),
        ("scale: .5", Run(scale=0.5)),
        ("scale: 2", Run(scale=2.0)),
        ("scale: -.inf", Run(scale=float("-inf"))),
        ("name: no", Run(name="no")),
        ("name: '12'", Run(name="12")),
        ("name: 010", Run(name="010")),
        ("fast: true", Run(fast=True)),
        ("every: 2", Run(every=2)),
        ("every: auto", Run(every="auto")),
        ("precision: bf16", Run(precision=Precision.BF16)),
        ("files: [a, b/c]", Run(files=(Path("a"), Path("b/c")))),
        ("rates: {a: 1}", Run(rates={"a": 1.0})),
        ("any_number: 3", Run(any_number=3)),
        ("any_number: 3e0", Run(any_number=3.0)),
        ("any_number: three", Run(any_number="three")),
    ],
)
def test_a_field_takes_what_its_annotation_says(text: str, expected: Run) -> None:
    assert repr(read(text)) == repr(expected)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("2GiB", 2**31), ("1.5 kB", 1500), ("4096", 4096), ("7b", 7), ("3mib", 3 * 2**20)],
)
def test_a_byte_size_has_a_unit(text: str, num_bytes: int) -> None:
    assert read(f"memory: {text}").memory == num_bytes


@pytest.mark.parametrize("text", ["null", "~", ""])
def test_null_reads_as_none(text: str) -> None:
    assert read(f"cap: {text}").cap is None


def test_an_optional_field_takes_its_other_type() -> None:
    assert read("cap: 1KiB").cap == 1024


def test_a_nested_mapping_keeps_the_defaults_it_does_not_name() -> None:
    assert read("optimizer: {betas: [0.8, 0.9]}").optimizer == AdamW(betas=(0.8, 0.9))


def test_a_literal_field_picks_the_member_of_a_union() -> None:
    assert read("optimizer: {kind: sgd}").optimizer == Sgd("sgd")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: {path: corpus}", Folder(Path("corpus"))),
        ("data: {shuffle: true, texts: [a]}", Inline(("a",), shuffle=True)),
        ("data: corpus", "corpus"),
    ],
)
def test_the_keys_pick_the_member_of_a_union(text: str, expected: object) -> None:
    assert read(text).data == expected


def test_a_mapping_of_configs_keeps_its_order() -> None:
    groups = read("groups: {b: {kind: sgd}, a: {kind: sgd, learning_rate: 1}}").groups
    assert list(groups.items()) == [("b", Sgd("sgd")), ("a", Sgd("sgd", 1.0))]


def test_free_values_follow_yaml_1_2() -> None:
    model = read("model: {eps: 1e-5, sizes: [1, on, null], rope: {theta: '1'}}").model
    assert model == {"eps": 1e-5, "sizes": [1, "on", None], "rope": {"theta": "1"}}


def test_an_anchor_stands_for_its_value() -> None:
    run = read("rates: {a: &rate 0.5, b: *rate}")
    assert run.rates == {"a": 0.5, "b": 0.5}


def test_an_override_replaces_one_value() -> None:
    run = read("steps: 3\noptimizer: {learning_rate: 1}", "optimizer.betas=[0.5, 0.6]")
    assert run == Run(steps=3, optimizer=AdamW(learning_rate=1.0, betas=(0.5, 0.6)))


def test_the_last_override_wins() -> None:
    assert read("steps: 3", "steps=4", "steps=5").steps == 5


def test_an_override_fills_what_the_file_leaves_out() -> None:
    assert read("optimizer:", "optimizer.kind=sgd").optimizer == Sgd("sgd")


def test_an_override_without_value_is_null() -> None:
    assert read("", "cap=").cap is None


def test_a_file_is_read_from_its_path(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: größer\n", encoding="utf-8")
    assert config.load(tmp_path / "run.yaml", Run, ["steps=9"]) == Run(steps=9, name="größer")


@dataclass(frozen=True)
class Unreadable:
    names: list[str]


def test_a_field_type_that_yaml_cannot_hold_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match=r"a config field cannot have the type list\[str\]"):
        config.parse(SourceText("run.yaml", "names: a"), Unreadable)
