"""Mistakes in a config, each with its place, both values and a remedy."""

from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Literal

import pytest

from openwafer import config
from openwafer.config import Bytes, InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText


@dataclass(frozen=True)
class AdamW:
    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Sgd:
    kind: Literal["sgd"] = "sgd"
    learning_rate: float = 1e-2


@dataclass(frozen=True)
class Run:
    steps: int
    name: str = ""
    fast: bool = False
    memory: Bytes = 0
    files: tuple[Path, ...] = ()
    optimizer: AdamW | Sgd = AdamW()
    limit: int | float | None = None
    groups: dict[str, Sgd] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps < 1:
            message = f"expected at least 1, found {self.steps}"
            raise InvalidFieldError("steps", message, help="ask for a step")
        if self.fast and self.memory:
            raise ValueError("fast and memory exclude each other")


def failure(text: str, *overrides: str) -> str:
    with pytest.raises(OpenwaferError) as caught:
        config.parse(SourceText("run.yaml", text), Run, overrides)
    return str(caught.value)


def lines(expected: str) -> str:
    return dedent(expected).strip()


def test_an_unknown_key_is_shown_with_the_closest_one() -> None:
    expected = """
        error[config-unknown-key]: no key 'fats' here
         --> run.yaml:2:1
          |
        2 | fats: true
          | ^^^^
          = help: did you mean 'fast'?
    """
    assert failure("steps: 1\nfats: true\n") == lines(expected)


def test_a_wrong_type_is_shown_with_both_sides() -> None:
    expected = """
        error[config-type]: expected a whole number, found the text 'many'
         --> run.yaml:1:8
          |
        1 | steps: many
          |        ^^^^
    """
    assert failure("steps: many") == lines(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast: yes", "expected true or false, found the text 'yes'"),
        ("fast: 1", "expected true or false, found the number 1"),
        ("name: 1.10", "expected text, found the number 1.10"),
        ("name: true", "expected text, found true"),
        ("name: [a]", "expected text, found a list"),
        ("memory: true", "expected a byte size such as 2GiB, found true"),
        ("memory: 1.5", "expected a byte size such as 2GiB, found the number 1.5"),
        ("memory: 1.3B", "'1.3B' is not a whole number of bytes"),
        ("memory: 2GBi", "'2GBi' is not a byte size"),
        ("files: a", "expected a list, found the text 'a'"),
        ("optimizer: adamw", "expected a mapping, found the text 'adamw'"),
        ("optimizer: {kind: adam}", "no such choice: the text 'adam'"),
        ("optimizer: {kind: [adam]}", "no such choice: a list"),
        ("optimizer: {betas: [1]}", "expected a list of 2, found a list of 1"),
        ("optimizer:", "expected a mapping, found nothing"),
        ("limit: few", "expected a whole number or a number, found the text 'few'"),
        ("limit: []", "expected a whole number or a number or nothing, found a list"),
        ("groups: [a]", "expected a mapping, found a list"),
    ],
)
def test_a_wrong_value_is_named(text: str, message: str) -> None:
    assert message in failure(f"steps: 1\n{text}").splitlines()[0]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("name: 1.10", 'write it in quotes: "1.10"'),
        ("memory: 2GBi", "write it as in 512MB, 2GiB or 4096"),
        ("optimizer: {kind: adam}", "did you mean 'adamw'?"),
        ("zzz: 1", "known here: steps, name, fast, memory, files, optimizer, limit, groups"),
    ],
)
def test_the_help_names_the_remedy(text: str, remedy: str) -> None:
    assert failure(f"steps: 1\n{text}").endswith(f"= help: {remedy}")


def test_all_problems_of_a_file_come_at_once() -> None:
    text = "fats: 1\nname: []\ngroups: {a: {kind: x}, b: {learning_rate: y}}\nfiles: [1, a, 2]"
    codes = [line.split("]")[0] for line in failure(text).splitlines() if "error[" in line]
    assert codes == [
        "error[config-unknown-key",
        "error[config-type",
        "error[config-value",
        "error[config-type",
        "error[config-type",
        "error[config-type",
        "error[config-missing-key",
    ]


def test_a_missing_key_points_at_the_mapping_that_lacks_it() -> None:
    expected = """
        error[config-missing-key]: missing here: steps
         --> run.yaml:1:1
          |
        1 | fast: true
          | ^
    """
    assert failure("fast: true") == lines(expected)


def test_a_value_that_the_config_refuses_is_pointed_at() -> None:
    expected = """
        error[config-value]: steps: expected at least 1, found 0
         --> run.yaml:2:8
          |
        2 | steps: 0
          |        ^
          = help: ask for a step
    """
    assert failure("name: a\nsteps: 0") == lines(expected)


def test_values_that_exclude_each_other_are_refused_at_their_mapping() -> None:
    shown = failure("steps: 1\nfast: true\nmemory: 1")
    assert shown.startswith(
        "error[config-value]: fast and memory exclude each other\n --> run.yaml:1:1"
    )


def test_a_key_that_stands_twice_is_an_error() -> None:
    expected = """
        error[config-duplicate-key]: the key 'steps' stands here twice
         --> run.yaml:3:1
          |
        3 | steps: 2
          | ^^^^^
          = note: first on line 1
    """
    assert failure("steps: 1\nname: a\nsteps: 2") == lines(expected)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("steps: [", "not YAML: expected the node content", "1:9"),
        ("a: b: c", "not YAML: mapping values are not allowed here", "1:5"),
        ("a: 'b", "not YAML: found unexpected end of stream", "1:6"),
        ("a: 1\n---\nb: 2", "not YAML: but found another document", "2:1"),
        ("a: *b", "not YAML: found undefined alias 'b'", "1:4"),
        ("a: \x07", "the character U+0007 is not allowed in YAML", "1:4"),
        ("a: !!python/none x", "not supported in a config: a tag", "1:4"),
        ("a: !own x", "not supported in a config: a tag", "1:4"),
        ("a: &x [*x]", "an alias stands inside its own anchor", "1:4"),
        ("? [a]\n: 1", "a key must be a word", "1:3"),
    ],
)
def test_a_text_that_is_no_config_is_refused_with_its_place(
    text: str, message: str, place: str
) -> None:
    shown = failure(text)
    assert shown.startswith("error[config-syntax]: ")
    assert message in shown
    assert f" --> run.yaml:{place}\n" in shown


def test_a_file_that_is_a_list_is_refused() -> None:
    assert "expected a mapping, found a list" in failure("- steps")


def test_a_mistake_in_an_override_is_shown_in_its_own_text() -> None:
    expected = """
        error[config-type]: expected a number, found the text 'fast'
         --> --set:1:25
          |
        1 | optimizer.learning_rate=fast
          |                         ^^^^
    """
    shown = failure("steps: 1\noptimizer: {kind: sgd}", "optimizer.learning_rate=fast")
    assert shown == lines(expected)


@pytest.mark.parametrize("assignment", ["steps", "=3", "optimizer.=3", ".steps=3"])
def test_an_override_without_key_or_value_is_refused(assignment: str) -> None:
    shown = failure("steps: 1", assignment)
    assert shown.startswith(f"error[config-override]: expected KEY=VALUE, found '{assignment}'")


def test_an_override_below_a_value_is_refused() -> None:
    shown = failure("steps: 1", "steps.more=2")
    assert shown.startswith("error[config-override]: 'steps' has no keys: it holds the number 1")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        OpenwaferError, match=r"cannot read .*run\.yaml: No such file.*\n.*help: give the"
    ):
        config.load(tmp_path / "run.yaml", Run)


def test_a_file_that_is_not_utf8_is_refused_with_the_byte(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"name: \xff")
    with pytest.raises(
        OpenwaferError, match=r"is not UTF-8 text: byte 6 is 0xff\n.*help: save it as UTF-8"
    ):
        config.load(tmp_path / "run.yaml", Run)


@pytest.mark.parametrize("text", ["*", "*.bias", "*norm", "*norm.*"])
def test_a_pattern_without_quotes_is_told_to_have_them(text: str) -> None:
    found = failure("steps: 1\nfiles: [" + text + "]")
    assert "= help: a text that begins with * stands in quotes: '*.bias'" in found


def test_the_end_of_a_text_is_told_in_words() -> None:
    assert "but found the end\n" in failure("steps: 1", "name=*")


def test_keys_of_two_choices_do_not_go_together() -> None:
    found = failure("steps: 1\noptimizer: {betas: [0.9, 0.99], learning_rate: 1}")
    assert "'learning_rate' does not go together with 'betas'\n --> run.yaml:2:" in found
    assert "the whole mapping: {learning_rate: ...}" in found
