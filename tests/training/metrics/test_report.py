"""The report: whole, self-contained, true to its run."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import METRICS_FORMAT, StepMetrics, StepWriter, load_run
from openwafer.training.metrics.report import render_report, write_report
from openwafer.training.metrics.report.curves import (
    draw_noise_scale,
    draw_peak_memory,
    draw_step_memory,
    draw_traffic,
    list_traffic,
)
from openwafer.training.metrics.report.drawing import finite_points, moving_mean, thin
from openwafer.training.metrics.report.page import describe_home
from openwafer.training.metrics.report.timeline import draw_timeline
from openwafer.training.metrics.step_trace import Kind, StepTrace, TraceSpan, Track
from tests.training.metrics.synthetic_run import change_plan, make_metrics, write_run

FIGURES = (
    "loss",
    "learning-rate",
    "gradient-norm",
    "throughput",
    "peak-memory",
    "step-memory",
    "timeline",
    "traffic",
    "disk-rate",
    "host-memory",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_run(tmp_path_factory.mktemp("runs") / "stdlib-gpt", num_layers=4, num_steps=60)
    return write_report(folder).read_text(encoding="utf-8").replace("\u00a0", " ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run whose first step is not finished; steps 2, 3 and 4 are traced all the same."""
    folder = write_run(tmp_path / "small", num_layers=3, num_steps=5)
    StepWriter(folder / "metrics.jsonl", METRICS_FORMAT).close()
    return folder


@pytest.fixture(scope="module")
def bare_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a killed run that wrote only what every run writes."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "bare", num_layers=3, num_steps=5)
    for name in ("trace.json", "validation.jsonl", "sample.json", "environment.json"):
        (folder / name).unlink()
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    return render_report(load_run(folder))


def figure(page: str, name: str) -> str:
    found = re.search(rf'<figure id="{name}">.*?</figure>', page, re.DOTALL)
    assert found is not None
    return found[0]


class TextOnly(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def text_of(html: str) -> str:
    parser = TextOnly()
    parser.feed(html)
    return " ".join(parser.words).replace("\u00a0", " ")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_caption_and_a_drawing_for_each_width(page: str, name: str) -> None:
    drawn = figure(page, name)
    assert re.search(r'<p class="caption">[A-Z][^<]{20,}\.</p>', drawn)
    assert re.findall(r'viewBox="0 0 (\d+) ', drawn) == ["920", "360"]


def test_the_page_needs_nothing_beside_it(page: str) -> None:
    outside = re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)[^)]*\)|@import|<script|<link', page)
    assert outside == []


def test_every_drawing_is_well_formed(page: str) -> None:
    drawings = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    assert [ET.fromstring(drawing).tag for drawing in drawings] == ["svg"] * 20


def test_no_two_elements_share_an_id(page: str) -> None:
    names = re.findall(r'\bid="([^"]*)"', page)
    assert len(names) == len(set(names))


def test_every_reference_within_the_page_has_its_target(page: str) -> None:
    wanted = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page))
    assert {a or b for a, b in wanted} <= set(re.findall(r'\bid="([^"]*)"', page))


def test_every_color_of_a_drawing_is_one_that_dark_mode_knows(page: str) -> None:
    style, body = page.split("</style>")
    light, dark = style.split("prefers-color-scheme: dark")
    used = set(re.findall(r"var\((--\w+)\)", body))
    assert used <= set(re.findall(r"(--\w+):", light)) & set(re.findall(r"(--\w+):", dark))
    assert not re.search(r"(?:fill|stroke): #", body)


def test_the_summary_says_what_was_trained_and_where_it_lives(page: str) -> None:
    summary = text_of(page[page.index('<p class="summary">') : page.index("<dl")])
    assert "7.20M parameters in 4 layers, trained for 60 steps on cpu" in summary
    assert "Weights live in DRAM (6.87 MiB) and on disk (20.6 MiB)" in summary


def test_the_tiles_hold_each_number_against_its_limit(page: str) -> None:
    tiles = text_of(page[page.index("<dl") : page.index("</dl>")])
    for words in (
        "predicted 1.84 s (disk)",
        "of 64.0 MiB",
        "predicted peak 640 MiB",
        "12.00 B/parameter",
        "of the limit",
    ):
        assert words in tiles


def test_the_timeline_states_the_share_of_time_the_device_computes(page: str) -> None:
    share = re.search(r"The device computes ([\d.]+)% of the time", figure(page, "timeline"))
    assert share is not None
    assert f"computing {share[1]}%" in text_of(page)


def test_the_timeline_names_tracks_and_layers(page: str) -> None:
    words = text_of(figure(page, "timeline"))
    for name in ("compute", "fetch", "push", "update", "disk read", "disk write", "model.layers.1"):
        assert name in words


def test_a_layer_keeps_every_digit_of_its_name() -> None:
    span = TraceSpan(Track.COMPUTE, Kind.FORWARD, "model.layers.10435", 0, (0.0, 1.0))
    drawn = draw_timeline(StepTrace(0, (0.0, 1.0), (span,), ()), [])
    assert ">model.layers.10435<" in drawn.wide_svg
    assert ">layers.10435<" in drawn.narrow_svg


def test_a_recompute_is_painted_over_the_backward_that_contains_it() -> None:
    backward = TraceSpan(Track.COMPUTE, Kind.BACKWARD, "a", 0, (0.0, 1.0))
    recompute = TraceSpan(Track.COMPUTE, Kind.RECOMPUTE, "a", 0, (0.2, 0.5))
    step = StepTrace(0, (0.0, 1.0), (backward, recompute), ())
    drawn = draw_timeline(step, []).wide_svg
    assert drawn.index("var(--backward)") < drawn.index("var(--recompute)")


def test_memory_is_shown_against_budget_and_prediction(page: str) -> None:
    for name in ("peak-memory", "step-memory"):
        words = text_of(figure(page, name))
        assert "budget 64.0 MiB" in words
        assert "predicted peak 61.0 MiB" in words


def test_only_metered_steps_have_a_peak(folder: Path) -> None:
    rows = [replace(make_metrics(step, 3), device_bytes_peak=None) for step in range(4)]
    drawn = draw_peak_memory([*rows, make_metrics(4, 3)], load_run(folder).plan)
    assert "each of the 1 steps that were metered, of 5" in drawn.words.caption


def test_a_budget_far_above_all_that_is_used_does_not_flatten_the_charts(folder: Path) -> None:
    change_plan(folder, device_budget_bytes=24 << 30)
    run = load_run(folder)
    assert run.trace is not None
    over_steps = draw_peak_memory([make_metrics(0, 3)], run.plan)
    within_one = draw_step_memory(run.trace.select(None), run.plan)
    for drawn in (over_steps, within_one):
        assert [key.label for key in drawn.words.legend] == ["predicted peak 61.0 MiB"]


@pytest.mark.parametrize(("mebibytes", "is_shown"), [(90, True), (9000, False)])
def test_what_a_plain_loop_would_hold_is_a_level_that_does_not_flatten_the_chart(
    folder: Path, mebibytes: int, is_shown: bool
) -> None:
    change_plan(folder, plain_loop_bytes=mebibytes << 20)
    drawn = draw_peak_memory([make_metrics(0, 3)], load_run(folder).plan)
    labels = [key.label for key in drawn.words.legend]
    assert ("plain loop, by the plan's count 90.0 MiB" in labels) == is_shown


def test_bytes_moved_stand_beside_the_plan(page: str) -> None:
    assert "8.00 (plan 8.00)" in text_of(figure(page, "traffic"))


def test_the_share_that_the_first_system_moves_is_not_held_against_the_plan_of_all(
    folder: Path,
) -> None:
    change_plan(folder, stores={"is_shared": True, "reason": "store_systems is all"})
    plan = load_run(folder).plan
    drawn = draw_traffic(list_traffic([make_metrics(0, 3)], plan), plan.parameters)
    assert "the first system's store" in drawn.words.caption
    words = text_of(drawn.wide_svg)
    assert "8.00" in words
    assert "plan" not in drawn.words.caption + words


def test_the_plan_has_a_row_for_every_layer(page: str) -> None:
    table = page[page.index('<table class="plan">') :]
    rows = table[table.index("<tbody>") : table.index("</tbody>")].split("</tr>")[:-1]
    assert [text_of(row).split()[0] for row in rows[::3]] == ["embed_tokens", "lm_head"]


def test_generated_text_is_shown_as_it_is(page: str) -> None:
    assert 'Return the <lines> & nothing else."""' in text_of(page)


def test_validation_points_are_in_the_legend_and_the_caption(page: str) -> None:
    words = text_of(figure(page, "loss"))
    assert "validation" in words
    assert "On held-out data it ends at" in words


@pytest.mark.parametrize(
    "note",
    [
        "No step was traced in this run.",
        "No validation was run.",
        "No text was generated in this run.",
        "The environment of this run was not recorded.",
    ],
)
def test_what_a_run_has_not_is_noted(bare_page: str, note: str) -> None:
    assert note in bare_page


@pytest.mark.parametrize("name", ["step-memory", "timeline"])
def test_without_a_trace_its_figures_are_absent(bare_page: str, name: str) -> None:
    assert f'id="{name}"' not in bare_page


@pytest.fixture(scope="module")
def idle_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run of one step, without a finite loss, that moved nothing."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "idle", num_layers=3, num_steps=5)
    nothing = {f"{way}_bytes": 0 for way in ("fetch", "push", "disk_read", "disk_write")}
    with StepWriter(folder / "metrics.jsonl", METRICS_FORMAT) as writer:
        writer.append(replace(make_metrics(0, 3), loss=math.nan, **nothing))  # type: ignore[arg-type]
    change_plan(folder, step_bytes={"fetch": 0, "push": 0, "disk_read": 0, "disk_write": 0})
    (folder / "trace.json").unlink()
    return render_report(load_run(folder))


def test_a_run_without_a_finished_step_has_a_report_and_another_step_can_be_shown(
    folder: Path,
) -> None:
    shown = render_report(load_run(folder), step=2)
    assert "No step was finished yet." in shown
    assert "Step 2, " in shown


def test_a_torn_line_is_noted(bare_page: str) -> None:
    assert "The last line of metrics.jsonl was cut short by a kill" in bare_page


def test_a_run_whose_loss_was_never_finite_says_so(idle_page: str) -> None:
    assert "No loss of this run is a finite number." in idle_page


def test_a_resident_run_says_that_it_fits(folder: Path) -> None:
    change_plan(folder, mode="resident")
    assert "The model fits: all of it stays on" in describe_home(load_run(folder).plan)


def test_a_run_that_moved_nothing_says_so(idle_page: str) -> None:
    assert "Nothing was streamed" in idle_page


def test_a_step_that_was_not_traced_is_refused_and_leaves_the_old_report(folder: Path) -> None:
    (folder / "report.html").write_text("an old one")
    with pytest.raises(OpenwaferError, match=r"asked for step 77, traced steps: 2, 3, 4"):
        write_report(folder, step=77)
    assert (folder / "report.html").read_text() == "an old one"


def test_thinning_keeps_the_peak_of_a_long_series() -> None:
    x, y = finite_points((step, 1000.0 if step == 7777 else step % 7) for step in range(20_000))
    thin_x, thin_y = thin(x, y)
    assert len(thin_x) <= 1200
    assert (thin_x[thin_y.argmax()], thin_y.max()) == (7777, 1000)


def test_a_moving_mean_uses_what_there_is_at_the_ends() -> None:
    _, y = finite_points(enumerate([0.0, 3.0, 6.0, 9.0]))
    assert moving_mean(y, 3).tolist() == [1.5, 3.0, 6.0, 7.5]


def test_points_that_are_not_finite_are_left_out() -> None:
    x, y = finite_points([(0, 1.0), (1, math.nan), (2, math.inf), (3, 4.0)])
    assert (x.tolist(), y.tolist()) == ([0, 3], [1.0, 4.0])


def test_a_step_of_a_run_without_trace_is_refused(folder: Path) -> None:
    (folder / "trace.json").unlink()
    with pytest.raises(
        OpenwaferError, match=r"asked for step 2, traced steps: none\n.*trace_steps"
    ):
        write_report(folder, step=2)


def test_a_report_that_cannot_be_written_is_told(folder: Path) -> None:
    (folder / "report.html").mkdir()
    with pytest.raises(OpenwaferError, match=r"cannot write .*report.html: Is a directory\n.*copy"):
        write_report(folder)


def with_systems(row: StepMetrics, seconds: tuple[float, ...]) -> StepMetrics:
    """The row of a step on systems that all waited for the last one, which computed longest."""
    waiting = tuple(seconds[-1] - one for one in seconds)
    whole = tuple(seconds[-1] for _ in seconds)
    received = tuple(1000 * rank for rank, _ in enumerate(seconds))
    return replace(
        row,
        system_seconds=whole,
        system_waiting_seconds=waiting,
        system_received_bytes=received,
    )


@pytest.fixture(scope="module")
def shared_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run on several systems, whose gradients never rose above their noise."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "shared", num_layers=3, num_steps=5)
    with StepWriter(folder / "metrics.jsonl", METRICS_FORMAT) as writer:
        writer.append(with_systems(make_metrics(0, 3), (9.0, 9.0)))
        for step in range(1, 4):
            row = with_systems(make_metrics(step, 3), (1.0, 1.5, 2.5))
            writer.append(with_noise(row, None))
    (folder / "trace.json").unlink()
    return render_report(load_run(folder))


def test_the_slowest_system_is_named(shared_page: str) -> None:
    text = shared_page
    assert "System 2 computes longest: 2.5 s of a step, where the median is 1.5 s." in text
    assert "The systems wait for 33.3% of their time. In a step 2.93 KiB pass between them" in text


def with_noise(row: StepMetrics, scale: float | None) -> StepMetrics:
    """The row of a step of 8 samples."""
    tokens = None if scale is None else scale * row.tokens / 8
    return replace(row, noise_scale=scale, noise_scale_tokens=tokens, gradient_noise=3.0)


@pytest.mark.parametrize(
    ("scales", "told"),
    [
        ((None, 5.0, 12.5), "It ends at 12.5, and a step has 8."),
        ((None, 0.0), "It ends at 0."),
    ],
)
def test_the_noise_scale_stands_beside_the_batch(
    scales: tuple[float | None, ...], told: str
) -> None:
    rows = [with_noise(make_metrics(step, len(scales)), one) for step, one in enumerate(scales)]
    assert told in draw_noise_scale(rows).words.caption


def test_a_gradient_that_never_rose_above_its_noise_is_told(shared_page: str) -> None:
    assert "The gradient's mean never rose above its noise." in text_of(shared_page)


def test_a_run_that_measured_no_noise_scale_shows_none(page: str) -> None:
    assert "noise scale" not in page


def test_a_batch_that_grew_stands_beside_the_noise_scale_with_both_ends() -> None:
    rows = [
        replace(row, noise_scale=9.0, noise_scale_tokens=9.0 * row.tokens / size)
        for row, size in ((make_metrics(step, 3), size) for step, size in enumerate((8, 16, 32)))
    ]
    drawn = draw_noise_scale(rows)
    assert "It ends at 9, and a step has 8 to 32." in drawn.words.caption
    assert [key.label for key in drawn.words.legend] == ["batch of 8", "batch of 32"]
