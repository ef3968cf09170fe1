"""Results have the types and values that numpy 1.26.4 gave, whatever numpy is installed."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openwafer.sdk.compat.numpy1 import rewriting

# Each line is an expression, a tab, and what `show` made of it under numpy 1.26.4.
TABLE = Path(__file__).with_name("numpy_1_26_4.txt")


def result(text: str, before: str = "") -> Any:
    rewriting.install()
    names: dict[str, Any] = {"np": np}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        exec(rewriting.compiled(f"{before}\nresult = {text}", "script.py"), names)
    return names["result"]


def show(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.tolist()!r}"
    return f"{type(value).__name__} {value!r}"


def test_a_table_of_numpy_1_comes_out_the_same() -> None:
    rows = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    assert len(rows) > 350
    wrong = {text: (show(result(text)), due) for text, due in rows if show(result(text)) != due}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("np.uint16(3) << 16", 196608),
        ("np.uint16(5) + 70000", 70005),
        ("sum([np.uint16(40000), np.uint16(40000)])", 80000),
        ("pow(np.uint16(300), 2)", 90000),
        ("divmod(np.uint8(3), 300)[1]", 3),
        ("np.left_shift(np.uint16(3), 16)", 196608),
        ("np.bitwise_or(*[np.uint16(3), 1 << 16])", 65539),
        ("eval('np.uint16(3) << 16')", 196608),
        ("[a - 5 for a in np.array([3], np.uint16)][0]", -2),
    ],
)
def test_a_number_beside_a_scalar_has_64_bits(text: str, due: int) -> None:
    assert show(result(text)) == f"int64 {due}"


def test_words_of_a_time_stamp_become_its_cycles() -> None:
    before = (
        "def make_u48(words):\n  return words[0] + (words[1] << 16) + (words[2] << 32)\n"
        "words = np.zeros(3, np.uint32)\nwords[:] = [14313, 2, 3]\nwords = words.view(np.uint16)"
    )
    assert result("make_u48(words[::2])", before) == 14313 + (2 << 16) + (3 << 32)


def test_a_scalar_of_64_bits_leaves_an_array_its_type() -> None:
    text = "np.where([True], np.ones(1, np.float32) * np.float64(0.5), np.float64(1))"
    assert show(result(text)) == "float32 [0.5]"


@pytest.mark.parametrize(
    ("name", "text", "due"),
    [
        ("operator", "operator.lshift(np.uint16(3), 16)", 196608),
        ("math", "math.prod([np.uint16(300), np.uint16(300)])", 90000),
        ("itertools", "list(itertools.accumulate([np.uint16(3), 70000]))[-1]", 70003),
        ("functools", "functools.reduce(lambda a, b: a << b, [np.uint16(3), 16])", 196608),
    ],
)
def test_functions_of_the_standard_library_follow(name: str, text: str, due: int) -> None:
    assert show(result(text, f"import {name}")) == f"int64 {due}"


def test_a_function_that_got_another_name_follows() -> None:
    assert result("shl(np.uint16(3), 16)", "from numpy import left_shift as shl") == 196608
