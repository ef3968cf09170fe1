"""What is promised to people of versions is what `make test-versions` tries."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "versions.py"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def minors(versions: set[str]) -> list[int]:
    return sorted(int(version.partition(".")[2]) for version in versions)


def promised(text: str) -> list[int]:
    """The minor releases of a range `>=a.b,<a.c`."""
    found = re.search(r">=\d+\.(\d+),<\d+\.(\d+)", text)
    assert found is not None
    return list(range(int(found[1]), int(found[2])))


def asked(package: str) -> str:
    [found] = [one for one in PROJECT["dependencies"] if re.match(rf"{package}\W", one)]
    return str(found)


def test_every_torch_and_every_python_is_tried() -> None:
    pythons, torches, _ = zip(*SCRIPT["PAIRS"], strict=True)
    assert minors(set(torches)) == promised(asked("torch"))
    assert minors(set(pythons)) == promised(PROJECT["requires-python"])


def test_the_oldest_of_other_packages_is_tried() -> None:
    oldest = {re.sub(r"==(.*)\.\*", r">=\1", one) for one in SCRIPT["OLDEST"]}
    assert {asked("transformers"), asked("numpy").partition(",")[0]} == oldest


def test_the_nightly_run_tries_the_same_pairs() -> None:
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text("utf-8")
    rows = yaml.safe_load(text)["jobs"]["versions"]["strategy"]["matrix"]["include"]
    tried = [(row["python"], row["torch"]) for row in rows]
    assert tried == [(python, torch) for python, torch, _ in SCRIPT["PAIRS"]]


def test_the_fast_part_exists() -> None:
    assert [name for name in SCRIPT["FAST"] if not (ROOT / name).exists()] == []
