"""Lines of Python's library, each beside itself scrambled, and the model to begin with."""

import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from openwafer.recipes.instruct.data import write_rows
from openwafer.recipes.recipe import find_recipe
from openwafer.training.data.sources import DataSource, SourceKind, list_files
from openwafer.training.data.tokenizer import END_OF_TEXT, load_tokenizer
from openwafer.training.session import Session

POLICY: Final = "llama"
"""The recipe whose model is trained on."""
LINES_BEFORE: Final = 4
MOST_PAIRS: Final = 12_000
SAMPLE_TOKENS: Final = 128
_SHORTEST: Final = 20
"""Characters of a line: shorter ones hold little to put in another order."""
_WORD: Final = re.compile(r"(\w+)")


def make(folder: Path) -> None:
    """Write the folder policy, with its tokenizer, and pairs.jsonl."""
    with TemporaryDirectory(dir=folder) as runs:
        session = Session(find_recipe(POLICY).config, [f"folder={runs}", "name=policy"])
        session.train()
        session.export(folder / "policy")
    tokenizer = load_tokenizer(folder / "policy", split_special_tokens=False)
    draws = random.Random(0)
    pairs = list(_pairs(draws))
    draws.shuffle(pairs)
    rows = (
        {"prompt": prompt, "answers": f"{chosen}{END_OF_TEXT}{rejected}"}
        for prompt, chosen, rejected in pairs
        if len(tokenizer.encode(f"{prompt}{chosen}{rejected}")) <= SAMPLE_TOKENS - 2
    )
    write_rows(folder / "pairs.jsonl", islice(rows, MOST_PAIRS))


def _pairs(draws: random.Random) -> Iterator[tuple[str, str, str]]:
    for file in list_files(DataSource(SourceKind.STANDARD_LIBRARY)):
        lines = file.read_text("utf-8").splitlines()
        for number in range(LINES_BEFORE, len(lines), LINES_BEFORE):
            prompt = "\n".join(lines[number - LINES_BEFORE : number]).rstrip()
            scrambled = _scrambled(lines[number], draws)
            if prompt and scrambled != lines[number] and len(lines[number].strip()) >= _SHORTEST:
                # A line end begins the answers, so that no token is of the prompt and of one.
                yield prompt, f"\n{lines[number]}", f"\n{scrambled}"


def _scrambled(line: str, draws: random.Random) -> str:
    """The line with its words in another order."""
    parts = _WORD.split(line)
    words = parts[1::2]
    draws.shuffle(words)
    parts[1::2] = words
    return "".join(parts)
