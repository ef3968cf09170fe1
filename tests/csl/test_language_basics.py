"""The examples of docs/language compile and run, or are refused as they say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.csl.sema.programs import messages, run

FOLDER = Path(__file__).parents[2] / "docs" / "language"
PAGES = (
    *("variables", "types", "operators", "control-flow", "functions", "comptime", "modules"),
    "value-builtins",
)
_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ERROR = re.compile(r"^// error: (.*)$", re.MULTILINE)


def examples() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
        for number, block in enumerate(_BLOCK.findall(text), start=1):
            yield f"{page}-{number}", block


EXAMPLES = dict(examples())
REFUSED = {name: text for name, text in EXAMPLES.items() if _ERROR.search(text)}
ACCEPTED = {name: text for name, text in EXAMPLES.items() if name not in REFUSED}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_an_example_runs(text: str) -> None:
    main = "" if "fn main(" in text else "fn main() void {}"
    assert run(f"{text}\n{main}").image.warnings == ()


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_an_example_is_refused(text: str) -> None:
    end = "comptime { @export_symbol(main); }" if "fn main(" in text else ""
    assert messages(f"{text}\n{end}") == _ERROR.findall(text)


def test_every_page_has_examples() -> None:
    assert {name.rpartition("-")[0] for name in EXAMPLES} == set(PAGES)
