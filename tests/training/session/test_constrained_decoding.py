"""Texts that meet a constraint at each token: what is refused, taken back, and read again."""

import ast
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers.decoders import ByteFallback, Fuse
from tokenizers.decoders import Sequence as Sequential

from openwafer.training.session import Sampling
from openwafer.training.session.constrained import (
    Constraint,
    can_become_python,
    num_statements,
    whole_program,
)
from openwafer.training.session.writing import MOST_DEAD_ENDS, Decoded, Writing
from tests.tables import case

DRAWN = Sampling(max_new_tokens=40, temperature=1.0, seed=3)
BEGINNINGS = (
    "def f(a):\n",
    "x = [\n    1,\n",
    "x = [\n    1\n]",
    "try:\n    f()\n",
    "@decorated\n",
    "# a remark\n",
    "x = 1 + \\\n",
    "x = 1 + \\\r\n",
    "x = 1 + \\",
    "import os, \\\n",
    "def f():\n    def g():\n        nonlocal x\n",
    "def f():\n    '''text\n    of two lines'''\n    x",
    "x = 'text",
    "x = 'a' f'",
    "x = 'text\\",
    "from os impor",
    "if x !",
    "def f() -",
    "x = 1e-",
    "x = 0x",
    "f(*a, *",
    "x = 1 i",
)
MISTAKES = (
    "def f(a.",
    "def f(a.b):\n",
    "x = 'text\n",
    "x = 'text\\\n",
    "x = '''text\n",
    "x = y.'text",
    "x = y z",
    "    x",
    "def f():\n    a()\n  b",
    "    if f(\n    x",
    "if x:\n    y = f(z\n    a",
    "x = (1]",
    "return 1\n",
    "x = 1\0",
    "x = ] \\\n",
    "nonlocal x\n",
    f"# {'x' * 99}",
)


@pytest.mark.parametrize("text", BEGINNINGS)
def test_a_text_that_more_completes_can_become_python(text: str) -> None:
    assert can_become_python(text)


@pytest.mark.parametrize("text", MISTAKES)
def test_a_text_that_nothing_mends_cannot(text: str) -> None:
    assert not can_become_python(text)


def beginnings_of(names: str, step: int) -> Iterator[str]:
    """Beginnings of what stands in Python's library and has no string of several lines."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob(names)):
        text = path.read_text("utf-8", "replace")
        parts = [ast.get_source_segment(text, node) or "" for node in ast.parse(text).body]
        # The first statements of a module, such as its text, may be in their place alone.
        code = "\n".join(part for part in parts[1:] if '"""' not in part and "'''" not in part)
        if "__future__" not in code:
            yield from (code[:end] for end in range(0, min(len(code), 3000), step))


@pytest.mark.parametrize(
    ("names", "step"),
    [("json/encoder.py", 61), case("[a-e]*.py", 17, by_default=False)],
)
def test_every_beginning_of_a_program_can_become_python(names: str, step: int) -> None:
    # Lines that are longer are no mistakes to Python.
    found = [text for text in beginnings_of(names, step) if len(text) - text.rfind("\n") <= 100]
    assert len(found) > 15
    assert [text for text in found if not can_become_python(text)] == []


def test_the_lines_that_are_a_program_are_found_with_their_statements() -> None:
    program = "def f():\n    'text'\n    x = 1\n    return x\n"
    assert whole_program(f"{program}    y = (\n        1,\n") == program
    assert num_statements(program) == 3


def letters(tokens: Sequence[int]) -> str:
    return "".join("ab\n"[token] for token in tokens)


def written(constraint: Constraint, sampling: Sampling = DRAWN) -> tuple[str, int]:
    """A text of a, b and line ends by chance, and how many tokens were refused."""
    writing = Writing([[0]], replace(sampling, constraint=constraint), decode=letters)
    while writing.tokens:
        writing.add({0: torch.arange(3.0)})
    [num_refused] = writing.num_refused
    return letters(writing.written[0]), num_refused


def test_tokens_that_are_refused_are_drawn_again() -> None:
    text, num_refused = written(lambda text: "b" not in text)
    assert (len(text), "b" in text, "\n" in text) == (40, False, True)
    assert num_refused > 0


@pytest.mark.parametrize("sampling", [replace(DRAWN, temperature=0.0), replace(DRAWN, top_k=1)])
def test_the_likeliest_token_that_is_not_refused_is_taken(sampling: Sampling) -> None:
    assert written(lambda text: "\n" not in text, sampling) == ("b" * 40, 40)


def test_what_is_accepted_is_what_is_drawn_without_a_constraint() -> None:
    free = Writing([[0]], DRAWN)
    while free.tokens:
        free.add({0: torch.arange(3.0)})
    assert written(lambda text: True) == (letters(free.written[0]), 0)


def test_tokens_that_lead_nowhere_are_taken_back() -> None:
    # Behind the third token nothing follows, unless the first is an a.
    text, _ = written(lambda text: len(text) < 5 or text[1] == "a")
    assert (text[0], len(text)) == ("a", 40)


def test_a_text_ends_where_nothing_is_left() -> None:
    text, num_refused = written(lambda text: len(text) < 9)
    assert len(text) < 9
    assert num_refused > MOST_DEAD_ENDS


def of_bytes(tokens: Sequence[int]) -> str:
    # A decoder that takes the space from in front of a full stop.
    return bytes(tokens).decode("utf-8", "replace").replace(" .", ".")


def with_fallback(tokens: Sequence[int]) -> str:
    """Bytes in a row are read together or not at all, as tokenizers of SentencePiece do it."""
    names = [f"<0x{token:02X}>" if token > 127 else chr(token) for token in tokens]
    return str(Sequential([ByteFallback(), Fuse()]).decode(names))


@pytest.mark.parametrize("decode", [of_bytes, with_fallback])
def test_text_of_one_token_more_is_that_of_all_tokens(
    decode: Callable[[Sequence[int]], str],
) -> None:
    tokens = [*"wäre 漢漢漢字 . 🙂🙂🙂 z".encode(), 0x80, 0x80, *"ä ä".encode()]
    decoded = Decoded(decode, tokens[:1])
    for number, token in enumerate(tokens[1:], start=2):
        decoded.append(token)
        assert decoded.text.rstrip("\ufffd") == decode(tokens[:number]).rstrip("\ufffd")


@pytest.mark.parametrize(("num_bytes", "num_shown"), [(1, 0), (3, 0), (4, 1)])
def test_bytes_that_no_character_lacks_are_text(num_bytes: int, num_shown: int) -> None:
    assert Decoded(of_bytes, [97, *[0x80] * num_bytes]).text == "a" + "\ufffd" * num_shown
