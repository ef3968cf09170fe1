from pathlib import Path

import pytest

from tests.planted.fault import PRODUCT, Fault, MisfitError
from tests.planted.planting import failed_test, search
from tests.planted.sdk_faults import SDK_FAULTS
from tests.planted.training_faults import TRAINING_FAULTS

ROOT = Path(__file__).parents[2]
FAULTS = (*TRAINING_FAULTS, *SDK_FAULTS)
TWICE = Fault("halved", "gives the half", "twice.py", "2 * x", "x", ("ground",))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_fits_the_product_and_compiles(fault: Fault) -> None:
    planted = fault.planted((ROOT / PRODUCT / fault.path).read_text(encoding="utf-8"))
    compile(planted, fault.path, "exec")


def test_every_fault_has_a_name_of_its_own_and_tests_that_exist() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    likely = {place for fault in FAULTS for place in fault.likely}
    assert [place for place in likely if not (ROOT / "tests" / place).exists()] == []


def test_a_fault_is_looked_for_where_the_import_floors_let_it_be_seen() -> None:
    folders = ["cli", "csl", "faults", "planted", "planning", "sdk", "training"]
    assert SDK_FAULTS[0].reached(folders) == ["csl", "sdk", "cli"]
    assert TWICE.reached(folders) == [one for one in folders if one != "planted"]


def tree_in(folder: Path, *assertions: str) -> Path:
    """A tree whose product doubles a number, with a file of tests for each assertion."""
    for name in (PRODUCT, "tests/ground", "tests/sdk"):
        (folder / name).mkdir(parents=True)
    (folder / "src/openwafer/__init__.py").touch()
    (folder / "src/openwafer/twice.py").write_text("def twice(x):\n    return 2 * x\n")
    for place, assertion in zip(("ground", "sdk"), assertions, strict=True):
        text = f"from openwafer.twice import twice\n\ndef test_it():\n    assert {assertion}\n"
        (folder / f"tests/{place}/test_{place}.py").write_text(text)
    return folder


def test_a_fault_is_found_by_the_test_that_fails_with_it_alone(tmp_path: Path) -> None:
    tree = tree_in(tmp_path / "tree", "twice(1) == 3", "twice(1) == 2")
    found = search(TWICE, tree, 600)
    assert found.found_by == "tests/sdk/test_sdk.py::test_it"
    assert found.unsure == ("tests/ground/test_ground.py::test_it",)


@pytest.mark.slow
def test_a_fault_that_no_test_sees_is_told(tmp_path: Path) -> None:
    found = search(TWICE, tree_in(tmp_path / "tree", "twice(0) == 0", "True"), 600)
    assert str(found).startswith("NOT FOUND (")


@pytest.mark.parametrize(
    "ending", ["", " ", " FAILED   [ 54%]\n", " Timeout (0:05:00)!\nThread 0x1:\n"]
)
def test_a_test_that_hangs_is_the_one_that_failed(ending: str) -> None:
    begun = "tests/sdk/test_a.py::test_it[1] PASSED   [ 50%]\ntests/sdk/test_a.py::test_it[a b]"
    assert failed_test(begun + ending) == "tests/sdk/test_a.py::test_it[a b]"


def test_a_fault_whose_old_text_has_gone_is_refused() -> None:
    with pytest.raises(MisfitError, match=r"'halved' replaces '2 \* x', .* has 0 times, not once"):
        TWICE.planted("return x + x")
