"""The lines of the guide's pages on trainers run one after the other, as they stand there."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.wings import TESTS

GUIDE = TESTS.parent / "docs/guide"
PAGES = ("hugging-face.md", "lightning.md")


def blocks_of(page: str) -> Iterator[str]:
    text = (GUIDE / page).read_text("utf-8")
    yield from re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def libraries_of(block: str) -> set[str]:
    """The packages that its lines import."""
    nodes = list(ast.walk(ast.parse(block)))
    named = {alias.name for one in nodes if isinstance(one, ast.Import) for alias in one.names}
    named |= {str(one.module) for one in nodes if isinstance(one, ast.ImportFrom)}
    return {name.partition(".")[0] for name in named}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES)
def test_the_lines_of_a_page_run_as_they_stand(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"accelerate", *(name for block in blocks_of(page) for name in libraries_of(block))}
    missing = sorted(name for name in wanted if find_spec(name) is None)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": page}
    for block in blocks_of(page):
        exec(compile(block, page, "exec"), names)
    assert names["trainer"] is not None
