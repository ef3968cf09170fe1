"""Questions about images of handwritten digits, which scikit-learn carries."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from openwafer.recipes.instruct.data import write_rows
from openwafer.recipes.packages import folder_of
from openwafer.training.data.tokenizer import train_tokenizer

LEVELS: Final = tuple(f"<|{level}|>" for level in range(17))
"""How dark a pixel is."""
NAMES: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_VOCAB_SIZE: Final = 320


def make(folder: Path) -> None:
    """Write answers.jsonl and the folder tokenizer."""
    rows = [
        {"prompt": image + question, "answer": answer}
        for number, (image, digit) in enumerate(_images())
        for question, answer in [_question(number, digit)]
    ]
    write_rows(folder / "answers.jsonl", rows)
    texts = (question + answer for one in range(3) for question, answer in [_question(one, 0)])
    (folder / "tokenizer").mkdir()
    train_tokenizer(texts, _VOCAB_SIZE, LEVELS).save(folder / "tokenizer")


def _images() -> Iterator[tuple[str, int]]:
    """Each image as 64 levels, row by row, and its digit."""
    file = folder_of("sklearn") / "datasets/data/digits.csv.gz"
    with gzip.open(file, "rt", encoding="ascii", newline="") as rows:
        for *pixels, digit in csv.reader(rows):
            yield "".join(LEVELS[int(pixel)] for pixel in pixels), int(digit)


def _question(number: int, digit: int) -> tuple[str, str]:
    """One of three about an image; one each, so that none is held out and trained on as well."""
    name = NAMES[digit]
    return (
        ("Which digit is it?", f" It is {name}."),
        ("Is it even or odd?", " It is odd." if digit % 2 else " It is even."),
        ("Which digit is behind it?", f" {NAMES[(digit + 1) % 10].capitalize()} is behind {name}."),
    )[number % 3]
