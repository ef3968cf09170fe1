"""openwafer coord-check, from a config to slopes, verdicts and a picture."""

import re
from pathlib import Path

import pytest

from tests.cli.command import Done, run_command

CONFIG = """
steps: 10
model: {hidden_size: 32, num_layers: 1, num_heads: 2, mlp_size: 64, context_length: 32}
parametrization: mup
base: {hidden_size: 32, num_heads: 2, mlp_size: 64}
optimizer: {learning_rate: 0.001}
batch: {size: 4, sequence_length: 32}
data: {source: {kind: text, paths: [nowhere]}, tokenizer: {vocab_size: 300}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("coord")
    (made / "mup.yaml").write_text(CONFIG)
    return made


@pytest.fixture(scope="module")
def done(folder: Path) -> Done:
    outputs = ("--picture", folder / "coord.png")
    return run_command("coord-check", folder / "mup.yaml", "--widths", "32,64,128", *outputs)


def test_slopes_of_each_module_are_shown_side_by_side(done: Done) -> None:
    assert done.code == 0, done.err
    assert re.search(r"^layers\.\*\.mlp\.down( +[+-]\d\.\d\d){4}$", done.out, re.MULTILINE)
    assert re.search(r"^head \(output\) +-0\.[45]\d ", done.out, re.MULTILINE)


def test_verdicts_name_the_steepest_module(done: Done) -> None:
    assert re.search(r"^muP: flat; the steepest is \S+, [+-]\d\.\d\d at", done.out, re.MULTILINE)
    assert re.search(r"^standard: not flat; the steepest is layers", done.out, re.MULTILINE)


def test_the_picture_of_a_check_is_written(done: Done, folder: Path) -> None:
    assert done.code == 0
    assert (folder / "coord.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_depths_are_checked_in_place_of_widths(folder: Path) -> None:
    layers = ("--set", "base={num_layers: 1}", "--picture", folder / "depth.svg")
    done = run_command("coord-check", folder / "mup.yaml", "--depths", "2,4,8", *layers)
    assert done.code == 0, done.err
    assert "slope of log size against log depth" in done.out
    assert "change by step 4" in done.out
    assert re.search(r"^muP: flat; the steepest", done.out, re.MULTILINE)
    assert re.search(r"^standard: not flat; the steepest is layers", done.out, re.MULTILINE)
    assert "depth" in (folder / "depth.svg").read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "a check is over widths or over depths"),
        (("--widths", "32,64", "--depths", "2,4"), "a check is over widths or over depths"),
        (("--depths", "deep"), "--depths: 'deep' is no list of numbers"),
        (("--widths", "wide"), "--widths: 'wide' is no list of numbers"),
        (
            ("--widths", "32,64", "--set", "parametrization=standard", "--set", "base={}"),
            "this config has no base model",
        ),
    ],
)
def test_a_check_that_cannot_be_is_refused(
    folder: Path, options: tuple[str, ...], expected: str
) -> None:
    done = run_command("coord-check", folder / "mup.yaml", *options)
    assert done.code == 2
    assert expected in done.err
