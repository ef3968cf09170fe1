"""Points in CSV and JSON, and the mistakes that people make in them."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.laws import Origin, TrainedPoint, read_points
from tests.planning.laws.pile_models import CSV, POINTS


def written(folder: Path, text: str, name: str = "points.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_points_of_a_csv_file_are_read(tmp_path: Path) -> None:
    assert read_points(written(tmp_path, f"# openwafer-points 1\n{CSV}\n")) == POINTS


def test_compute_follows_from_parameters_and_tokens(tmp_path: Path) -> None:
    [point] = read_points(written(tmp_path, "loss, parameters, tokens\n 3, 10, 100\n"))
    assert point == TrainedPoint(3, 6000, 10, 100, name=f"{tmp_path / 'points.csv'}:2")


def test_points_of_a_json_file_are_read(tmp_path: Path) -> None:
    text = '{"format": "openwafer-points", "version": 1, "points": [{"loss": 2, "flops": 5e3}]}'
    [point] = read_points(written(tmp_path, text, "points.json"))
    assert (point.loss, point.flops, point.origin) == (2, 5e3, Origin.MEASURED)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no column 'loss', only nothing"),
        ("loss,flops\n", "has no points"),
        ("loss,flop\n2,3\n", "'flop' is no column of points"),
        ("loss,loss\n2,3\n", "'loss' is a column twice"),
        ("loss,flops\n2\n", ":2: 1 values for 2 columns"),
        ("# why\nloss,flops\n\n2,many\n", ":4: flops is 'many', not a number"),
        ("loss,flops\n,3\n", ":2 has no loss"),
        ("loss,tokens\n2,3\n", ":2 has neither flops nor both parameters and tokens"),
        ("loss,flops,origin\n2,3,guessed\n", ":2: origin is 'guessed'"),
        ("# openwafer-points 2\nloss\n", "is openwafer-points 2; this program reads"),
    ],
)
def test_a_mistake_in_a_csv_file_is_told_by_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OpenwaferError, match="points-file") as caught:
        read_points(written(tmp_path, text))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ('{"format": "openwafer-points", "version": 1, "points": [{}]}', "points[0]: missing key"),
        ('{"format": "openwafer-points", "version": 9, "points": []}', "is openwafer-points 9"),
    ],
)
def test_a_mistake_in_a_json_file_is_told_by_its_key(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OpenwaferError, match="points-file") as caught:
        read_points(written(tmp_path, text, "points.json"))
    assert told in str(caught.value)


def test_a_file_of_points_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"none\.csv: No such file or directory"):
        read_points(tmp_path / "none.csv")
