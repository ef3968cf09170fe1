"""What the picture of a fit shows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.cli.command import run_command
from tests.planning.laws.pile_models import CSV


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The pictures that are saved."""
    made: list[Figure] = []
    save = Figure.savefig

    def kept(canvas: Figure, *args: Any, **options: Any) -> None:
        made.append(canvas)
        save(canvas, *args, **options)

    monkeypatch.setattr(Figure, "savefig", kept)
    return made


@pytest.mark.slow
def test_the_law_is_drawn_as_far_as_points_that_were_held_out(
    tmp_path: Path, saved: list[Figure]
) -> None:
    points = tmp_path / "pile.csv"
    points.write_text(CSV)
    run_command("fit", points, "--hold-out", "2.3e+22", "--picture", tmp_path / "fit.png")
    [law, *_, held_out] = saved[0].axes[0].get_lines()
    assert held_out.get_label() == "held out"
    far, near = (np.max(one.get_xdata()) for one in (law, held_out))
    assert far > near
