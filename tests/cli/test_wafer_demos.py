"""Demonstrations on the simulated wafer."""

from pathlib import Path

import pytest

from openwafer.cli.wafer_demos import DEMOS
from openwafer.cli.wafer_demos.shown import order_check
from tests.cli.command import run_command


def test_demonstrations_are_listed() -> None:
    lines = run_command("csl", "demo").out.splitlines()
    assert [line.split()[0] for line in lines] == list(DEMOS)


def test_a_demonstration_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = run_command("csl", "demo", "weather", "--folder", tmp_path)
    assert "no demonstration 'weather'" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("name", list(DEMOS))
def test_a_demonstration_holds_and_draws_a_picture(name: str, arch: str, tmp_path: Path) -> None:
    done = run_command("csl", "demo", name, "--arch", arch, "--folder", tmp_path)
    assert "holds" in done.out
    assert "FAILS" not in done.out
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_an_order_of_convergence_is_the_exponent_of_the_spacing() -> None:
    spacings = [0.4, 0.2, 0.1]
    check = order_check(spacings, [h**3 for h in spacings], 3, 0.01)
    assert (check.holds, check.value) == (True, "3.00, 3.00")
    assert not order_check(spacings, [h**2 for h in spacings], 3, 0.5).holds
