"""The published systems: every figure says where it is from, and they agree with each other."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.figures import Figure, Origin
from openwafer.planning.systems import A100, CS1, CS2, CS3, H200, System, find_system

ALL = (CS1, CS2, CS3, H200, A100)


@pytest.mark.parametrize("system", ALL, ids=lambda system: system.name)
def test_every_figure_has_an_origin_and_a_source(system: System) -> None:
    assert len(system.figures) >= 8
    for figure in system.figures:
        assert figure.origin in (Origin.PUBLISHED, Origin.INFERRED)
        assert figure.source
        assert figure.value > 0 or figure.name == "forwards_again"


@pytest.mark.parametrize("system", ALL, ids=lambda system: system.name)
def test_every_figure_is_named_as_it_is_asked_for(system: System) -> None:
    for part in (system, system.fabric):
        named = {name: getattr(part, name) for name in getattr(part, "__dataclass_fields__", {})}
        figures = {name: value for name, value in named.items() if isinstance(value, Figure)}
        assert {name: figure.name for name, figure in figures.items()} == {n: n for n in figures}


def test_peaks_are_those_of_the_chips() -> None:
    """WSE-2 5.78 and WSE-3 12.6 PFLOP/s, as cores x operations x clock."""
    assert CS2.peak.value == pytest.approx(5.78e15)
    assert CS3.peak.value == pytest.approx(12.6e15)


@pytest.mark.parametrize("system", [CS1, CS2, CS3], ids=lambda system: system.name)
def test_the_peak_of_a_wafer_is_near_that_of_its_usable_cores(system: System) -> None:
    """Some of the cores that the makers count lie outside of the rectangle."""
    assert system.fabric is not None
    columns, rows, lanes, clock = (figure.value for figure in (*system.fabric.figures,)[:4])
    usable = columns * rows * 2 * lanes * clock
    assert 0.85 < usable / system.peak.value < 1.01


def test_nobody_trains_above_the_peak() -> None:
    assert all(0 < system.utilisation.value < 1 for system in ALL)


@pytest.mark.parametrize(
    ("name", "system"), [("cs2", CS2), ("wse2", CS2), ("WSE3", CS3), ("cs1", CS1), ("h200", H200)]
)
def test_a_system_is_found_by_its_name_and_by_that_of_its_wafer(name: str, system: System) -> None:
    assert find_system(name) is system


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(OpenwaferError, match=r"system-unknown(.|\n)*did you mean 'h200'"):
        find_system("h20")


def test_a_name_near_none_is_sent_to_files() -> None:
    with pytest.raises(OpenwaferError, match=r"describe it in a \.yaml file"):
        find_system("abacus")
