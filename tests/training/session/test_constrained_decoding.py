"""Lines that a constraint refuses are drawn again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import Sampling, Session, load_config
from openwafer.training.session.constrained import MOST_DRAWS, Lines, can_become_python
from openwafer.training.session.opened_model import Reading, Writing
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_model import opened_to_read
from openwafer.training.session.saved_run import find_newest
from openwafer.training.store import StoreOptions
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config

DRAWN = Sampling(max_new_tokens=40, temperature=1.0, seed=3)
BEGINNINGS = (
    "def f(a):\n",
    "x = [\n    1,\n",
    "def f():\n    '''text\n",
    "try:\n    f()\n",
    "@decorated\n",
    "# a remark\n",
    "x = 1 + \\\n",
    "x = 1 + \\\r\n",
    "x = 'text\\\n",
    "import os, \\\n",
    "def f():\n    def g():\n        nonlocal x\n",
)
MISTAKES = (
    "def f(a.b):\n",
    "x = 'text\n",
    "    x = 1\n",
    "def f():\n    a()\n  b()\n",
    "x = (1]\n",
    "return 1\n",
    "x = 1\0\n",
    "x = ] \\\n",
    "nonlocal x\n",
)


@pytest.mark.parametrize("text", BEGINNINGS)
def test_a_text_that_more_lines_complete_can_become_python(text: str) -> None:
    assert can_become_python(text)


@pytest.mark.parametrize("text", MISTAKES)
def test_a_text_that_no_line_mends_cannot(text: str) -> None:
    assert not can_become_python(text)


def letters(tokens: Sequence[int]) -> str:
    return "".join("ab\n"[token] for token in tokens)


def written(wanted: str, sampling: Sampling = DRAWN) -> tuple[str, Lines]:
    """A text of a, b and line ends by chance, and its lines, which may hold letters as wanted."""
    lines = Lines(lambda text: set(text) <= {*wanted, "\n"}, letters, [0])
    writing = Writing([[0]], sampling, lines=[lines])
    while writing.tokens:
        writing.add({0: torch.zeros(3)})
    return letters(writing.written[0]), lines


def test_lines_that_are_refused_are_drawn_again() -> None:
    text, lines = written("a")
    assert "b" not in text[: text.rfind("\n")]
    assert text.count("\n") > 1
    assert lines.num_redrawn > 0


def test_what_is_accepted_is_what_is_drawn_without_a_constraint() -> None:
    free = Writing([[0]], DRAWN)
    while free.tokens:
        free.add({0: torch.zeros(3)})
    assert written("ab")[0] == letters(free.written[0])


def test_a_text_ends_before_a_line_that_is_always_refused() -> None:
    text, lines = written("")
    assert (text, lines.num_redrawn) == ("", MOST_DRAWS)


@pytest.mark.parametrize(("field", "value"), [("temperature", 0), ("top_k", 1)])
def test_the_likeliest_line_cannot_be_drawn_again(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field}: {value} draws the same line again"):
        replace(DRAWN, constraint=can_become_python, **{field: value})


@pytest.fixture(scope="module")
def run(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(tiny_config(data, tmp_path_factory.mktemp("texts")), model=GPT, steps=1)
    return Session(config, console=quiet()).train().folder


def test_what_follows_tokens_taken_back_is_what_follows_a_new_text(run: Path) -> None:
    config, folder = load_config(run / "config.yaml"), RunFolder(run)
    saved = find_newest(folder)
    assert saved is not None
    with opened_to_read(config, folder, saved, lambda text: None, StoreOptions()) as opened:
        opened.model.eval()
        reading = Reading(opened, 1, ())
        reading.next_logits({0: [3, 1, 4, 1]}, 4)
        found = reading.next_logits({0: [3, 9]}, 4)[0]
        assert torch.equal(found, Reading(opened, 1, ()).next_logits({0: [3, 9]}, 4)[0])


def test_a_prompt_that_breaks_the_constraint_is_told(run: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"no text that begins with 'x = 1\]\\n' meets"):
        Session(run, console=quiet()).generate(
            "x = 1]\n", replace(DRAWN, constraint=can_become_python)
        )
