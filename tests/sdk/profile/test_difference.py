"""Two profiles are compared line by line, whatever has moved in their sources."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.profile import Profile, difference_text, tables, write_profile
from openwafer.sdk.profile.difference import LineDifference, differences
from tests.cli.command import run_command
from tests.sdk.profile.two_commands import CODE, two_commands

CHANGED = "// faster\n" + CODE.replace("  add(3.0);\n", "").replace("*= factor", "+= factor")


def profile_of_code(folder: Path, code: str) -> Profile:
    with two_commands(folder, code).run(profile=True) as run:
        run.launch("scale", 2.0)
        return run.profile()


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Profile]:
    """Of a program, and of one with a line less and a line that is written in another way."""
    folder = tmp_path_factory.mktemp("programs")
    return profile_of_code(folder / "a", CODE), profile_of_code(folder / "b", CHANGED)


def by_text(found: tuple[LineDifference, ...]) -> dict[str, list[LineDifference]]:
    return {text: [one for one in found if one.text == text] for text in {o.text for o in found}}


def test_a_line_that_has_moved_is_the_same(profiles: tuple[Profile, Profile]) -> None:
    (operation,) = by_text(differences(*profiles))["@fmacs(all, all, all, k);"]
    assert operation.number == (8, 9)
    assert operation.cycles == (172, 86)


def test_a_line_that_is_written_anew_stands_on_each_side(
    profiles: tuple[Profile, Profile],
) -> None:
    found = by_text(differences(*profiles))
    assert found["A[i] *= factor;"][0].number == (16, None)
    assert found["A[i] += factor;"][0].number == (None, 17)
    assert found["A[i] += factor;"][0].cycles[0] == 0


def test_differences_sum_up_to_that_of_all_lines(profiles: tuple[Profile, Profile]) -> None:
    sums = [sum(one.cycles for one in tables.by_function(profile)) for profile in profiles]
    assert sum(one.more for one in differences(*profiles)) == sums[1] - sums[0]


def test_a_profile_differs_in_nothing_from_itself(profiles: tuple[Profile, Profile]) -> None:
    text = difference_text(profiles[0], profiles[0])
    assert "the program is the same" in text
    assert "0 cycles, 1.00 times as fast" in text
    assert all(one.more == 0 for one in differences(profiles[0], profiles[0]))


def test_what_makes_profiles_hard_to_compare_is_told(profiles: tuple[Profile, Profile]) -> None:
    other = replace(profiles[1], arch=Arch.WSE2, width=2, failure="error[x]: it failed\n  more")
    text = difference_text(profiles[0], other)
    assert "the generations differ" in text
    assert "the PEs differ" in text
    assert "the run after failed: error[x]: it failed\n" in text


def test_the_command_compares_two_files(profiles: tuple[Profile, Profile], tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for profile, path in zip(profiles, files, strict=True):
        write_profile(profile, path)
    assert run_command("csl", "diff", *files).out == difference_text(*profiles)
    files[1].write_text(files[1].read_text().replace("scale", "scope"), encoding="utf-8")
    assert "is damaged: its content has the checksum" in run_command("csl", "diff", *files).err


def test_speedscope_has_each_cycle_of_each_line_once(
    profiles: tuple[Profile, Profile], tmp_path: Path
) -> None:
    write_profile(profiles[0], tmp_path / "p.speedscope.json")
    whole = json.loads((tmp_path / "p.speedscope.json").read_text(encoding="utf-8"))
    (group,) = whole["profiles"]
    frames = whole["shared"]["frames"]
    names = {
        tuple(frames[number]["name"] for number in stack): weight
        for stack, weight in zip(group["samples"], group["weights"], strict=True)
    }
    assert names["(several tasks)", "add", "pe.csl:8"] == 172
    assert names["scale", "scale", "pe.csl:16"] == 320
    assert group["endValue"] == sum(group["weights"]) == 861
