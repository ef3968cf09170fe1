"""Chats about Python's own functions, and a tokenizer with a chat template."""

import ast
import json
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from openwafer.training.data.sources import DataSource, SourceKind, list_files
from openwafer.training.data.tokenizer import train_tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 512
LONGEST_ANSWER = 300
"""Characters: what is longer is more than a sample."""


def make(folder: Path) -> None:
    """Write chats.jsonl and the folder tokenizer."""
    chats = list(_chats())
    write_rows(folder / "chats.jsonl", ({"messages": chat} for chat in chats))
    texts = (message["content"] for chat in chats for message in chat)
    (folder / "tokenizer").mkdir()
    tokenizer = train_tokenizer(texts, VOCAB_SIZE, SPECIAL_TOKENS, TEMPLATE)
    tokenizer.save(folder / "tokenizer")


def write_rows(file: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as JSON lines."""
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    file.write_text("\n".join(lines) + "\n", "utf-8")


def _chats() -> Iterator[list[dict[str, str]]]:
    for module, tree in library_trees():
        yield from _chats_of(module, tree)


def library_trees() -> Iterator[tuple[str, ast.Module]]:
    """The modules of Python's library by name, parsed."""
    root = Path(sysconfig.get_path("stdlib"))
    for file in list_files(DataSource(SourceKind.STANDARD_LIBRARY)):
        try:
            tree = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            # Sources of an older Python, kept for a tool that rewrites them.
            continue
        yield ".".join(file.relative_to(root).with_suffix("").parts), tree


def _chats_of(module: str, tree: ast.Module) -> Iterator[list[dict[str, str]]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        answer = ast.get_docstring(node)
        if answer and len(answer) <= LONGEST_ANSWER:
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            question = f"What does the {kind} {node.name} of {module} do?"
            yield [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
