"""numba's libraries do what one unit asks of them, which numba does not promise."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from numba import njit, types

from openwafer.sdk.fabric import passes
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.one_unit import PartLibrary, WholeLibrary, as_one_unit

ROOT = Path(__file__).parents[3]


@compiled
def doubled(number: int) -> int:
    return 2 * number


@compiled
def four_times(number: int) -> int:
    return doubled(doubled(number))


@njit
def whole(number: int) -> int:
    return four_times(number) + doubled(1)


@njit
def after(number: int) -> int:
    return number + 1


def library_of(function: Any) -> Any:
    (made,) = function.overloads.values()
    return made.library


@pytest.fixture(scope="module", autouse=True)
def unit() -> None:
    with as_one_unit(whole):
        whole.compile((types.int64,))


def test_the_whole_computes() -> None:
    assert isinstance(library_of(whole), WholeLibrary)
    assert whole(5) == 22


def test_parts_pass_through_what_integers_and_loops_need() -> None:
    (made,) = doubled.overloads.values()  # type: ignore[attr-defined]
    [(name, seconds)] = made.metadata["pipeline_times"].items()
    assert (name, len(seconds)) == (passes.NAME, len(passes.NEEDED))


@pytest.mark.parametrize("part", [doubled, four_times], ids=["doubled", "four_times"])
def test_parts_have_no_machine_code(part: object) -> None:
    library = library_of(part)
    assert isinstance(library, PartLibrary)
    assert library.get_pointer_to_function("doubled") == 0


def test_parts_went_into_the_whole() -> None:
    machine_code = library_of(whole).get_asm_str()
    assert re.search(r"^\w*whole\w*:", machine_code, re.MULTILINE)
    assert not re.search(r"^\w*(doubled|four_times)\w*:", machine_code, re.MULTILINE)


def test_what_is_compiled_later_is_a_library_of_its_own() -> None:
    assert after(1) == 2
    assert not isinstance(library_of(after), PartLibrary | WholeLibrary)


def test_the_installed_version_is_of_the_range_that_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    minor = ".".join(version("numba").split(".")[:2])
    assert any(one.startswith(f"numba>={minor},<") for one in project["dependencies"])
