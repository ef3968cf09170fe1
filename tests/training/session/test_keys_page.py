"""docs/guide/keys.md names every key of every section, with the default that the config has."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from openwafer.config import parse
from openwafer.source import SourceText
from openwafer.training.session import RunConfig

PAGE = Path(__file__).parents[3] / "docs/guide/keys.md"
SOURCE = "{kind: standard-library}"
# A run has one of two keys, so that one has no default that is read alone.
ONE_OF_TWO = {"The run": {"steps": "1"}}
REQUIRED = {"data": f"{{source: {SOURCE}}}", "source": SOURCE, "match": "[a]"}


def tables() -> Iterator[tuple[str, dict[str, str]]]:
    """Each heading of the page that has a table, and the default of each key in it."""
    for part in re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| `(\w+)` \| `?(.+?)`? \|", part, re.MULTILINE)
        yield part.splitlines()[0], dict(rows)


def class_of(section: str) -> Any:
    found: Any = RunConfig
    for name in section.split(".") if section != "The run" else ():
        found = next(filter(is_dataclass, types_in(get_type_hints(found)[name])))
    return found


def types_in(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from types_in(part)


def is_required(key: Field[Any]) -> bool:
    return key.default is MISSING and key.default_factory is MISSING


def read(section: str, **written: str) -> Any:
    """The section as YAML that has what it requires, and `written` beside."""
    cls = class_of(section)
    needed = {key.name: REQUIRED[key.name] for key in fields(cls) if is_required(key)}
    needed |= ONE_OF_TWO.get(section, {})
    lines = [f"{key}: {value}\n" for key, value in (needed | written).items()]
    return parse(SourceText("keys.md", "".join(lines)), cls)


@pytest.mark.parametrize(("section", "rows"), [*tables()])
def test_each_section_has_a_row_for_each_of_its_keys(section: str, rows: dict[str, str]) -> None:
    assert sorted(rows) == sorted(key.name for key in fields(class_of(section)))


@pytest.mark.parametrize(("section", "rows"), [*tables()])
def test_defaults_of_the_page_are_those_of_the_config(section: str, rows: dict[str, str]) -> None:
    required = {key for key, default in rows.items() if default == "required"}
    assert required == {key.name for key in fields(class_of(section)) if is_required(key)}
    for key in rows.keys() - required - ONE_OF_TWO.get(section, {}).keys():
        assert getattr(read(section, **{key: rows[key]}), key) == getattr(read(section), key), key


def test_the_page_has_a_table_for_each_section_of_a_run() -> None:
    ours = [cls for _, cls in get_type_hints(RunConfig).items() if "session" in str(cls)]
    sections = {cls for hint in ours for cls in types_in(hint) if is_dataclass(cls)}
    assert sections <= {class_of(section) for section, _ in tables()}
