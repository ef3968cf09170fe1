"""Docstrings of Python's library, each with the function that it belongs to, and a tokenizer."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from openwafer.recipes.instruct.data import library_trees, write_rows
from openwafer.training.data.tokenizer import Tokenizer, train_tokenizer

BEGIN: Final = "<|cls|>"
"""The token whose vector stands for all behind it."""
QUESTION_TOKENS: Final = 31
PASSAGE_TOKENS: Final = 62
"""With what begins the two and ends the sample, 96 in all."""
_VOCAB_SIZE: Final = 1024


def make(folder: Path) -> None:
    """Write questions.jsonl and the folder tokenizer."""
    found = list(_found())
    tokenizer = train_tokenizer((text for pair in found for text in pair), _VOCAB_SIZE, [BEGIN])
    (folder / "tokenizer").mkdir()
    tokenizer.save(folder / "tokenizer")
    rows = (
        {"question": f"{BEGIN}{question}", "passage": f"{BEGIN}{_beginning(passage, tokenizer)}"}
        for question, passage in found
        if len(tokenizer.encode(question)) <= QUESTION_TOKENS
    )
    write_rows(folder / "questions.jsonl", rows)


def _found() -> Iterator[tuple[str, str]]:
    """What docstrings say first, each once, and the rest of their functions."""
    seen: set[str] = set()
    for _, tree in library_trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
                continue
            question = (ast.get_docstring(node) or "").partition("\n\n")[0]
            if question and question not in seen:
                seen.add(question)
                node.body = node.body[1:]
                yield question, ast.unparse(node)


def _beginning(text: str, tokenizer: Tokenizer) -> str:
    """As many whole lines as a passage has room for, and of the first what there is room for."""
    lines = text.splitlines()
    while len(lines) > 1 and len(tokenizer.encode("\n".join(lines))) > PASSAGE_TOKENS:
        del lines[-1]
    found = tokenizer.encode("\n".join(lines))
    return tokenizer.decode(found[:PASSAGE_TOKENS])
