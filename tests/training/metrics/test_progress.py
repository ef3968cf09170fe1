"""The live line of a run, in a terminal and in a log."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from openwafer.training.data import SizeChange
from openwafer.training.data.dataset import BatchSizes
from openwafer.training.metrics import StepMetrics
from openwafer.training.metrics.progress import (
    Progress,
    ProgressState,
    StepSamples,
    describe_progress,
    format_progress,
)

MIB = 1 << 20

METRICS = StepMetrics(
    step=0,
    loss=4.12345,
    learning_rate=3e-4,
    grad_norm=None,
    tokens=2048,
    tokens_per_second=1024.0,
    seconds=2.0,
    fetch_bytes=300 * MIB,
    push_bytes=100 * MIB,
    disk_read_bytes=150 * MIB,
    disk_write_bytes=50 * MIB,
    device_bytes_peak=48 * MIB,
    host_bytes=512 * MIB,
)


def state_after(num_steps: int) -> ProgressState:
    state = ProgressState(total_steps=100, device_budget_bytes=64 * MIB)
    for step in range(num_steps):
        state = state.after(replace(METRICS, step=step))
    return state


def run(console: Console, num_steps: int, *, first_step: int = 0) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    total = first_step + num_steps
    with Progress(
        total, device_budget_bytes=64 * MIB, first_step=first_step, log_every=4, console=console
    ) as progress:
        for step in range(first_step, total):
            progress.advance(replace(METRICS, step=step))
        progress.note("[checkpoint] written")
    return file.getvalue()


def test_a_plain_line_tells_everything_once() -> None:
    assert format_progress(state_after(10)) == (
        "step 10/100  loss 4.1235  1,024 tokens/s  streamed 3.91 GiB at 200 MiB/s  "
        "disk 100 MiB/s  device 48.0 MiB of 64.0 MiB  host 512 MiB  3 min 00 s left"
    )


def test_a_run_that_never_touches_the_disk_does_not_speak_of_it() -> None:
    quiet = replace(METRICS, disk_read_bytes=0, disk_write_bytes=0)
    state = ProgressState(10, 64 * MIB).after(quiet)
    assert not any("disk" in text for text in describe_progress(state))


def test_the_peak_shown_is_that_of_the_last_step_that_was_metered() -> None:
    unmetered = replace(METRICS, step=1, device_bytes_peak=None)
    assert "device 48.0 MiB of 64.0 MiB" in describe_progress(state_after(1).after(unmetered))


def test_before_the_first_step_the_time_left_is_unknown() -> None:
    assert format_progress(state_after(0)) == "step 0/100  ? left"


def test_rates_and_time_left_follow_the_last_20_steps() -> None:
    state = ProgressState(total_steps=60, device_budget_bytes=64 * MIB)
    for step in range(40):
        state = state.after(replace(METRICS, step=step, seconds=50.0 if step < 20 else 1.0))
    assert state.seconds_left == pytest.approx(20)


def test_without_a_terminal_the_first_the_last_and_every_fourth_step_are_logged() -> None:
    lines = run(Console(file=io.StringIO()), 10).splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["1/10", "4/10", "8/10", "10/10"]


def test_a_resumed_run_counts_from_its_first_step() -> None:
    lines = run(Console(file=io.StringIO()), 3, first_step=17).splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["18/20", "20/20"]


def test_a_plain_line_is_not_wrapped_to_the_width() -> None:
    text = run(Console(file=io.StringIO(), width=40), 1)
    assert len(text.splitlines()[0]) > 100


def test_a_note_is_printed_as_it_is() -> None:
    assert "[checkpoint] written\n" in run(Console(file=io.StringIO()), 1)


def test_the_noise_scale_is_shown_where_it_is_known() -> None:
    known = state_after(1).after(replace(METRICS, step=1, noise_scale=123.4))
    assert describe_progress(known)[-1] == "noise scale 123"
    assert not any("noise" in text for text in describe_progress(state_after(2)))


def test_a_terminal_shows_a_bar_and_the_figures() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    text = run(console, 8)
    assert "━━━" in text
    assert "device 48.0 MiB of 64.0 MiB" in text


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    lines = [line for line in run(console, 2).splitlines() if "\x1b" not in line]
    assert max(map(len, lines)) <= width


def test_time_left_is_in_proportion_to_samples_where_steps_grow() -> None:
    sizes = BatchSizes(4, (SizeChange(30, 12),))
    state = ProgressState(60, 64 * MIB, samples=StepSamples(sizes.before))
    for step in range(20):
        state = state.after(replace(METRICS, step=step, seconds=2.0))
    assert state.seconds_left == pytest.approx(10 * 2.0 + 30 * 6.0)
