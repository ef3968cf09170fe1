"""Two profiles, line by line: what a change of the program has done to its cycles."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeAlias

from openwafer.sdk.profile import tables
from openwafer.sdk.profile.model import Profile
from openwafer.sdk.profile.text import MAX_ROWS, Rows, summary, table, written

Key: TypeAlias = tuple[str, str, int | None, int | None]
"""File, function, and number of the line before and after; None where it is not there."""


@dataclass(frozen=True)
class LineDifference:
    """A line's cycles in two profiles, of all PEs.

    Attributes:
        file: its name.
        function: whose code it is.
        number: of the line, before and after; None where that source has no such line.
        cycles: of main threads, before and after.
        text: of the line.
    """

    file: str
    function: str
    number: tuple[int | None, int | None]
    cycles: tuple[int, int]
    text: str

    @property
    def more(self) -> int:
        """Cycles more than before."""
        return self.cycles[1] - self.cycles[0]


def differences(before: Profile, after: Profile) -> tuple[LineDifference, ...]:
    """Lines with cycles in either profile, those that changed most first.

    A line is the same in both where its file has the same name, its function too, and the texts of
    the two files have it in common.
    """
    sums: dict[Key, list[int]] = defaultdict(lambda: [0, 0])
    pairs = _same_lines(before, after)
    for side, profile in enumerate((before, after)):
        names = tables.short_names(profile)
        for one in profile.lines():
            file = names[one.file]
            numbers = pairs[side].get((file, one.line), _alone(side, one.line))
            sums[file, one.function, *numbers][side] += one.cycles + one.operation
    texts = [_texts(profile) for profile in (before, after)]
    found = (_difference(key, cycles, texts) for key, cycles in sums.items())
    return tuple(sorted(found, key=lambda one: (-abs(one.more), one.file, str(one.number))))


def _alone(side: int, line: int) -> tuple[int | None, int | None]:
    return (line, None) if side == 0 else (None, line)


def _difference(
    key: Key, cycles: Sequence[int], texts: Sequence[dict[str, list[str]]]
) -> LineDifference:
    file, function, *numbers = key
    side = 0 if numbers[1] is None else 1
    text = written(texts[side].get(file, ()), numbers[side] or 0)
    before, after = cycles
    return LineDifference(file, function, (key[2], key[3]), (before, after), text)


def _texts(profile: Profile) -> dict[str, list[str]]:
    names = tables.short_names(profile)
    return {names[source.name]: source.text.splitlines() for source in profile.sources}


def _same_lines(
    before: Profile, after: Profile
) -> tuple[dict[tuple[str, int], tuple[int, int]], dict[tuple[str, int], tuple[int, int]]]:
    """By file and number before, and by those after: the numbers of a line that both have."""
    mine, others = _texts(before), _texts(after)
    forth: dict[tuple[str, int], tuple[int, int]] = {}
    back: dict[tuple[str, int], tuple[int, int]] = {}
    for file in mine.keys() & others.keys():
        matcher = SequenceMatcher(None, mine[file], others[file], autojunk=False)
        for first, second, length in matcher.get_matching_blocks():
            for number in range(1, length + 1):
                numbers = first + number, second + number
                forth[file, numbers[0]] = back[file, numbers[1]] = numbers
    return forth, back


def difference_text(before: Profile, after: Profile, max_rows: int = MAX_ROWS) -> str:
    """Tables of the differences of two profiles, in cycles of all PEs."""
    parts = [
        "\n".join(_head(before, after)),
        _states(before, after),
        _lines(before, after, max_rows),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(before: Profile, after: Profile) -> Iterator[str]:
    yield f"before: {summary(before)}"
    yield f"after:  {summary(after)}"
    if before.cycles and after.cycles:
        speed = before.cycles / after.cycles
        yield f"{_signed(after.cycles - before.cycles)} cycles, {speed:.2f} times as fast"
    if before.program == after.program:
        yield "the program is the same"
    if before.arch != after.arch:
        yield "the generations differ, so all costs may"
    if (before.width, before.height, before.num_pes) != (after.width, after.height, after.num_pes):
        yield "the PEs differ, so sums over all of them are no measure of one"
    for name, profile in (("before", before), ("after", after)):
        if profile.failure is not None:
            yield f"the run {name} failed: {profile.failure.splitlines()[0]}"


def _signed(number: int) -> str:
    return f"{number:+,}" if number else "0"


def _states(before: Profile, after: Profile) -> str:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for side, profile in enumerate((before, after)):
        for one in profile.times():
            if one.is_main:
                sums[one.state][side] += one.cycles
    rows: Rows = [("state of main threads", "before", "after", "difference")]
    for state, (earlier, later) in sorted(sums.items(), key=lambda item: item[1][0] - item[1][1]):
        rows.append((state, f"{earlier:,}", f"{later:,}", _signed(later - earlier)))
    return table("What threads did or waited for, cycles of all PEs", rows)


def _lines(before: Profile, after: Profile, max_rows: int) -> str:
    rows: Rows = [("line", "before", "after", "difference", "")]
    for one in differences(before, after):
        earlier, later = one.number
        number = f"{earlier or '-'}" if earlier == later else f"{earlier or '-'} -> {later or '-'}"
        cells = [
            "-" if at is None else f"{cycles:,}"
            for at, cycles in zip(one.number, one.cycles, strict=True)
        ]
        rows.append(
            (f"{one.file}:{number} ({one.function})", *cells, _signed(one.more), f"| {one.text}")
        )
    return table("Cycles of main threads by line", rows, 1, max_rows, has_text_last=True)
