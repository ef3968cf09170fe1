"""metrics.jsonl: written, torn, resumed, refused."""

import json
import math
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import METRICS_FORMAT, StepWriter, read_lines
from tests.training.metrics.synthetic_run import make_metrics


def write_steps(path: Path, steps: range) -> Path:
    with StepWriter(path, METRICS_FORMAT) as writer:
        for step in steps:
            writer.append(make_metrics(step, 4))
    return path


def steps_in(path: Path) -> list[int]:
    return [row.step for row in read_lines(path, METRICS_FORMAT).rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_steps(tmp_path / "metrics.jsonl", range(6))


def test_rows_come_back_as_written(path: Path) -> None:
    assert read_lines(path, METRICS_FORMAT).rows == tuple(make_metrics(s, 4) for s in range(6))


def test_the_first_line_is_the_format_and_its_version(path: Path) -> None:
    header = path.read_text().splitlines()[0]
    assert header == '{"format": "openwafer-metrics", "version": 2}'


def test_rows_of_version_1_are_read_too(path: Path) -> None:
    path.write_text(path.read_text().replace('"version": 2', '"version": 1', 1))
    assert steps_in(path) == [*range(6)]


def test_a_step_that_was_not_metered_has_null_for_its_peak(path: Path) -> None:
    row = replace(make_metrics(0, 4), device_bytes_peak=None)
    with StepWriter(path, METRICS_FORMAT) as writer:
        writer.append(row)
    assert '"device_bytes_peak": null' in path.read_text()
    assert read_lines(path, METRICS_FORMAT).rows == (row,)


def test_a_row_can_be_read_before_the_file_is_closed(path: Path) -> None:
    with StepWriter(path, METRICS_FORMAT) as writer:
        writer.append(make_metrics(0, 4))
        assert steps_in(path) == [0]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_loss_survives_the_file(path: Path, value: float) -> None:
    assert written_loss(path, value) == value


def test_a_loss_that_is_not_a_number_survives_the_file(path: Path) -> None:
    assert math.isnan(written_loss(path, math.nan))


def written_loss(path: Path, loss: float) -> float:
    with StepWriter(path, METRICS_FORMAT) as writer:
        writer.append(replace(make_metrics(0, 4), loss=loss))
    return read_lines(path, METRICS_FORMAT).rows[0].loss


def test_a_norm_that_was_not_computed_stays_none(path: Path) -> None:
    with StepWriter(path, METRICS_FORMAT) as writer:
        writer.append(replace(make_metrics(0, 4), grad_norm=None))
    assert read_lines(path, METRICS_FORMAT).rows[0].grad_norm is None


def test_a_torn_last_line_is_set_apart_wherever_it_was_cut(path: Path) -> None:
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in (last, last + 1, last + 90, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        lines = read_lines(path, METRICS_FORMAT)
        assert (len(lines.rows), lines.torn.encode()) == (5, whole[last:end])


def test_resuming_drops_the_resumed_step_and_all_after_it(path: Path) -> None:
    with StepWriter(path, METRICS_FORMAT, first_step=4) as writer:
        writer.append(make_metrics(4, 4))
    assert steps_in(path) == [0, 1, 2, 3, 4]


def test_resuming_drops_a_torn_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])
    StepWriter(path, METRICS_FORMAT, first_step=6).close()
    assert (steps_in(path), read_lines(path, METRICS_FORMAT).torn) == ([0, 1, 2, 3, 4], "")


def test_a_run_from_step_0_starts_the_file_anew(path: Path) -> None:
    StepWriter(path, METRICS_FORMAT).close()
    assert steps_in(path) == []


def test_resuming_without_the_file_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"metrics\.jsonl: No such file"):
        StepWriter(tmp_path / "metrics.jsonl", METRICS_FORMAT, first_step=3)


@pytest.fixture
def at_most_100_bytes() -> Iterator[None]:
    """Writes past 100 bytes of any file fail, as on a disk without room."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("at_most_100_bytes")
def test_a_failed_write_names_the_file_the_step_and_the_remedy(tmp_path: Path) -> None:
    with (
        StepWriter(tmp_path / "metrics.jsonl", METRICS_FORMAT) as writer,
        pytest.raises(OpenwaferError, match=r"metrics\.jsonl: step 3: File too large[^$]*resume"),
    ):
        writer.append(make_metrics(3, 4))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"step": 6', r"metrics\.jsonl:8: not JSON"),
        ("[6]", r"metrics\.jsonl:8: expected an object, found list \[6\]"),
        ('{"step": 6}', r"metrics\.jsonl:8: missing key 'loss'"),
        (
            '{"step": 6, "loss": "high"}',
            r"metrics\.jsonl:8: loss: expected a number, found str 'high'",
        ),
    ],
)
def test_a_whole_line_that_breaks_the_format_is_named(
    path: Path, line: str, complaint: str
) -> None:
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(OpenwaferError, match=complaint):
        read_lines(path, METRICS_FORMAT)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("loss", '"high"', "loss: expected a number, found str 'high'"),
        ("loss", "true", "loss: expected a number, found bool True"),
        ("loss", "null", "loss: expected a number, found null"),
        ("tokens", "2.5", "tokens: expected int, found float 2.5"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(
    path: Path, key: str, value: str, complaint: str
) -> None:
    row = json.loads(path.read_text().splitlines()[1]) | {key: json.loads(value)}
    path.write_text(f"{METRICS_FORMAT.header()}\n{json.dumps(row)}\n")
    with pytest.raises(OpenwaferError, match=rf"metrics\.jsonl:2: {complaint}"):
        read_lines(path, METRICS_FORMAT)


@pytest.mark.parametrize("damage", [b"\0" * 90, b"\xff\xfe\n", b'{"step": "x"}\n', b"\n[]\n"])
def test_resuming_keeps_the_whole_rows_of_a_damaged_file_and_the_file(
    path: Path, damage: bytes
) -> None:
    whole = path.read_bytes()
    middle = whole.index(b'{"step": 3')
    path.write_bytes(whole[:middle] + damage + whole[middle:])
    damaged = path.read_bytes()
    with StepWriter(path, METRICS_FORMAT, first_step=5) as writer:
        assert writer.damaged == path.with_name("damaged-metrics.jsonl")
    assert set(steps_in(path)) in ({0, 1, 2, 3, 4}, {0, 1, 2, 4})
    assert writer.damaged.read_bytes() == damaged


def test_a_key_from_a_later_release_is_ignored(path: Path) -> None:
    row = json.loads(path.read_text().splitlines()[1]) | {"humidity": 0.4}
    path.write_text(f"{METRICS_FORMAT.header()}\n{json.dumps(row)}\n")
    assert steps_in(path) == [0]


def test_another_version_is_refused_with_both_versions(path: Path) -> None:
    path.write_text('{"format": "openwafer-metrics", "version": 3}\n')
    with pytest.raises(
        OpenwaferError, match=r":1: expected [^$]* version 2, found [^$]* version 3"
    ):
        read_lines(path, METRICS_FORMAT)


def test_a_file_without_its_header_is_refused(path: Path) -> None:
    path.write_text("")
    with pytest.raises(OpenwaferError, match=r"metrics\.jsonl:1: missing header line"):
        read_lines(path, METRICS_FORMAT)


def test_a_file_that_is_not_text_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(OpenwaferError, match=r"metrics\.jsonl: not UTF-8 text"):
        read_lines(path, METRICS_FORMAT)
