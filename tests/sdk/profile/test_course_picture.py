"""Pictures of a run have few bins, and parts with finer ones, as far as there are any."""

import re
from dataclasses import replace

import numpy as np
import pytest

from openwafer.sdk.fabric.account import KINDS
from openwafer.sdk.host.time_bins import MOST_BINS
from openwafer.sdk.profile import Profile
from openwafer.sdk.profile.course_picture import PARTS, PICTURE_BINS, picture_of, stripes_of
from openwafer.sdk.profile.model import Course, Lane, LaneKind
from openwafer.sdk.profile.page import profile_page
from tests.sdk.profile.two_commands import two_commands

BIN, PES = 64, 100


def lane(name: str, shares: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Lane:
    """Of shares of the time, shape (kinds, bins)."""
    cycles = np.rint(PES * BIN * shares).astype(int).tolist()
    kinds = (LaneKind(kind, tuple(own)) for kind, own in zip(KINDS, cycles, strict=False))
    return Lane(name, PES, tuple(kinds))


def random_lane(name: str, num_bins: int, num_kinds: int = len(KINDS)) -> Lane:
    shares = np.random.default_rng(len(name)).random((num_kinds, num_bins))
    return lane(name, shares / shares[1:].sum(axis=0))


def heights(path: str, num_bins: int) -> list[int]:
    """Of each bin, from the ground."""
    found = np.zeros(num_bins, int)
    for at, y in re.findall(r"H(\d+)V(\d+)", path):
        found[int(at) :] = 100 - int(y)
    return found.tolist()


def test_a_short_run_is_one_picture_with_all_of_its_bins() -> None:
    shares = np.array([[0.3, 0.0, 1.0], [0.25, 1.0, 0.0], [0.5, 0.0, 0.2], [0.25, 0.0, 0.8]])
    picture = picture_of(Course(BIN, (lane("a", shares),), (), ()), 3 * BIN)
    (strip,) = picture.strips
    assert (picture.width, picture.parts) == (3, ())
    assert [area.kind for area in strip.areas] == ["beat", "scalar"]
    assert heights(strip.areas[0].path, 3) == [75, 0, 100]
    assert heights(strip.areas[1].path, 3) == [50, 0, 20]
    assert heights(strip.beats, 3) == [30, 0, 100]


def test_a_last_bin_that_is_shorter_has_its_own_share() -> None:
    shares = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.5]])
    picture = picture_of(Course(BIN, (lane("a", shares),), (), ()), BIN + BIN // 2)
    assert picture.width == 1.5
    assert heights(picture.strips[0].areas[0].path, 2) == [100, 100]


@pytest.mark.parametrize("num_bins", [257, 513, 1000, 1024])
def test_parts_are_the_whole_with_all_of_its_bins(num_bins: int) -> None:
    course = Course(BIN, (random_lane("a", num_bins),), (), ())
    picture = picture_of(course, num_bins * BIN)
    assert picture.width <= PICTURE_BINS
    assert len(picture.parts) <= PARTS
    assert picture.parts[0].begin == 0
    assert picture.parts[-1].end == num_bins * BIN
    for before, after in zip(picture.parts, picture.parts[1:], strict=False):
        assert before.end == after.begin
    assert {(part.bin_cycles, part.parts) for part in picture.parts} == {(BIN, ())}


def test_bins_of_the_whole_are_means_of_finer_ones() -> None:
    course = Course(BIN, (random_lane("a", 512),), (), ())
    picture = picture_of(course, 512 * BIN)
    fine = [
        height
        for part in picture.parts
        for height in heights(part.strips[0].areas[-1].path, round(part.width))
    ]
    means = np.reshape(fine, (256, 2)).mean(axis=1)
    assert abs(means - heights(picture.strips[0].areas[-1].path, 256)).max() <= 1


def test_stripes_are_rows_of_a_map() -> None:
    lanes = tuple(random_lane(name, 512) for name in ("a", "bb", "ccc"))
    ((word, cells),) = stripes_of(Course(BIN, lanes[:1], lanes, lanes[:1]), 512 * BIN)
    assert (word, cells.columns, cells.rows, len(cells.layers)) == ("columns", 256, 3, 3)
    (first,) = (kind.cycles for kind in lanes[1].kinds if kind.name == cells.layers[0].name)
    assert cells.layers[0].cycles[256] == sum(first[:2]) // PES


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    with two_commands(tmp_path_factory.mktemp("program")).run(profile=True) as run:
        run.launch("scale", 2.0)
        return run.profile()


def with_course(profile: Profile, num_bins: int) -> Profile:
    """With the most that a page shows, of which nothing is like its neighbour."""
    codes, columns, rows = (
        tuple(random_lane(f"{word}{number}", num_bins) for number in range(16))
        for word in ("code", "columns", "rows")
    )
    return replace(profile, course=Course(BIN, codes, columns, rows), cycles=BIN * num_bins)


def test_a_page_of_the_longest_course_is_a_few_megabytes(profile: Profile) -> None:
    assert len(profile_page(with_course(profile, MOST_BINS))) < 2_000_000


def test_each_kind_has_its_color(profile: Profile) -> None:
    page = profile_page(with_course(profile, 8))
    shown = set(re.findall(r'<path class="([a-z-]+)"', page))
    assert shown == {"beats", *(kind.replace(" ", "-") for kind in KINDS[2:])}
    for kind in shown:
        assert re.search(rf"^\.(strip \.)?{kind} {{", page, re.MULTILINE)


def test_a_page_shows_the_run_with_its_legend(profile: Profile) -> None:
    page = profile_page(profile)
    assert "Along the run" in page
    assert re.findall(r'<rect class="([a-z]+)"', page) == [
        *("scalar", "beat", "turn", "drain", "switch")
    ]
    assert "pe.csl</b>, 1 PEs" in page
