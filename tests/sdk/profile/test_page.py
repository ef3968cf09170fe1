"""The page of a profile shows its figures, and needs nothing beside it."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.profile import Profile, tables, write_profile
from openwafer.sdk.profile.model import FabricMap, MapLayer
from openwafer.sdk.profile.page import SHADES, profile_page
from tests.sdk.profile.two_commands import CODE, two_commands

RUN = re.compile(r"M(\d+) (\d+)h(\d+)v1h-\3z")
VOID = {"meta", "rect"}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    with two_commands(tmp_path_factory.mktemp("program")).run(profile=True) as run:
        run.launch("scale", 2.0)
        return run.profile()


class Tags(HTMLParser):
    """Rows of the page's tables, and tags that are open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_every_line_of_the_source_stands_with_its_cycles(profile: Profile) -> None:
    cycles = {one.line: one.cycles + one.operation for one in profile.lines() if "pe" in one.file}
    shown = {row[-1]: row[0] for row in Tags(profile_page(profile)).rows if len(row) == 7}
    for number, text in enumerate(CODE.splitlines(), 1):
        assert shown[text] == (f"{cycles[number]:,}" if number in cycles else "")


def test_a_page_is_whole_and_loads_nothing(profile: Profile) -> None:
    page = profile_page(profile)
    assert Tags(page).open == []
    assert not re.search(r"<script|<link|<img|https?:|url\(", page)


def test_states_stand_with_their_shares(profile: Profile) -> None:
    rows = {row[0]: row for row in Tags(profile_page(profile)).rows}
    (scalar,) = (one for one in tables.by_state(profile) if one.state == "scalar")
    assert rows["scalar"][2:4] == [f"{scalar.main:,}", f"{100 * scalar.main / 884:.1f}%"]


def test_a_failure_is_shown_as_it_was_told(profile: Profile) -> None:
    page = profile_page(replace(profile, failure="error[x]: a < b"))
    assert "The run failed in the last of these cycles:\nerror[x]: a &lt; b</div>" in page


def with_map(profile: Profile, cycles: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Profile:
    layer = MapLayer("scalar", tuple(map(int, cycles.ravel())))
    rows, columns = cycles.shape
    return replace(profile, fabric_map=FabricMap(columns, rows, 1, (layer,)))


def test_each_cell_of_a_map_has_the_shade_of_its_cycles(profile: Profile) -> None:
    cycles = np.random.default_rng(0).integers(0, 1000, (5, 7))
    drawn = np.zeros((5, 7))
    page = profile_page(with_map(profile, cycles))
    for opacity, path in re.findall(r'<path fill-opacity="([\d.]+)" d="([^"]+)"', page):
        for x, y, length in RUN.findall(path):
            drawn[int(y), int(x) : int(x) + int(length)] += float(opacity)
    assert drawn.tolist() == (np.ceil(SHADES * cycles / cycles.max()) / SHADES).tolist()


def test_a_map_of_64_by_64_cells_is_small(profile: Profile) -> None:
    cycles = np.random.default_rng(0).integers(0, 10**6, (64, 64))
    assert len(profile_page(with_map(profile, cycles))) < 100_000


def test_a_file_has_the_form_that_its_name_asks_for(profile: Profile, tmp_path: Path) -> None:
    write_profile(profile, tmp_path / "p.html")
    assert (tmp_path / "p.html").read_text(encoding="utf-8") == profile_page(profile)
    with pytest.raises(OpenwaferError, match=r"json, \.html, \.txt"):
        write_profile(profile, tmp_path / "p.pdf")
