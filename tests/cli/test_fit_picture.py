"""What the picture of a fit shows."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from openwafer.cli import fit_picture
from tests.cli.command import run_command
from tests.planning.laws.pile_models import CSV


def test_the_law_is_drawn_as_far_as_points_that_were_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canvases: list[Any] = []

    def canvas(**options: Any) -> Figure:
        made = Figure(**options)
        canvases.append(made)
        return made

    monkeypatch.setattr(fit_picture, "Canvas", canvas)
    points = tmp_path / "pile.csv"
    points.write_text(CSV)
    done = run_command("fit", points, "--hold-out", "2.3e+22", "--picture", tmp_path / "fit.png")
    assert done.code == 0, done.err
    [law, *_, held_out] = canvases[0].axes[0].get_lines()
    assert held_out.get_label() == "held out"
    assert max(law.get_xdata()) > max(held_out.get_xdata())
