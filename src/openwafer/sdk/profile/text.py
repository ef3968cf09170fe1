"""A profile as text: tables for a terminal."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from openwafer.diagnostics import counted
from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.profile import tables
from openwafer.sdk.profile.advice import advice
from openwafer.sdk.profile.model import Profile
from openwafer.sdk.profile.segments import Cost, CriticalPath, Segment
from openwafer.sdk.profile.tables import CodeTime

MAX_ROWS: Final = 20
"""Of a table that may be long."""
LEAST_SHARE: Final = 0.05
"""Of a critical path: what helps against less is not said."""
_MEMORY_BYTES: Final = WORD_BYTES * MEMORY_WORDS
Rows: TypeAlias = list[Sequence[str]]
_NO_CYCLES: Final = (
    "none has passed, as what is launched runs when the script waits for it, copies, or stops"
)
_CODE_HEAD: Final = ("cycles", "share", "issued", "waited", "in operations")


def profile_text(profile: Profile, max_rows: int = MAX_ROWS) -> str:
    """The tables of a profile; of each the first `max_rows` rows."""
    parts = [
        _head(profile),
        _states(profile),
        _advice(profile),
        *([] if profile.critical_path is None else _path(profile.critical_path, max_rows)),
        _groups(profile, max_rows),
        _code("task", tables.by_task(profile), profile, max_rows),
        _code("function", tables.by_function(profile), profile, max_rows),
        _lines(profile, max_rows),
        _roofs(profile),
        *_traffic(profile),
        _memory(profile, max_rows),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def path_text(path: CriticalPath, max_rows: int = MAX_ROWS) -> str:
    """A critical path as tables: costs, most first, with what helps, and its longest parts."""
    return "\n\n".join(_path(path, max_rows)) + "\n"


def _path(path: CriticalPath, max_rows: int) -> tuple[str, ...]:
    costs: Rows = [("for", "color", "at", "cycles", "share", "waited", "gains", "what helps")]
    costs += [
        (
            *_named(one),
            f"{one.cycles:,}",
            share(one.cycles, path.cycles),
            f"{one.waited:,}",
            f"{one.gain:,}" if remedy(one, path) else "",
            remedy(one, path),
        )
        for one in path.costs()
    ]
    longest: Rows = [("for", "color", "at", "PE", "from", "to")]
    longest += [
        (*_named(one), pe_of(one), f"{one.begin:,}", f"{one.end:,}")
        for one in path.longest(max_rows)
    ]
    num = f"{counted(path.cycles, 'cycle')} in {counted(len(path.segments), 'part')}"
    title = f"Critical path, {num}: what decided the last cycle"
    return (
        table(title, costs, 3, max_rows, has_text_last=True),
        table("Its longest parts", longest, 4),
    )


def _named(one: Cost | Segment) -> tuple[str, str, str]:
    return one.reason, "" if one.color < 0 else str(one.color), one.where


def remedy(cost: Cost, path: CriticalPath) -> str:
    """What helps; empty against what takes little of the path, and nothing has waited for."""
    return cost.remedy if cost.waited or cost.cycles >= LEAST_SHARE * path.cycles else ""


def pe_of(one: Segment) -> str:
    """Whose time a segment is."""
    return "host" if one.x < 0 else f"({one.x}, {one.y})"


def summary(profile: Profile) -> str:
    """How long the run took on what, and how it ended."""
    size = f"{profile.width} by {profile.height} PEs of {profile.arch}"
    told = f"{profile.cycles:,} cycles on {size}"
    if profile.num_pes != profile.width * profile.height:
        told += f"; what follows is of {counted(profile.num_pes, 'PE')}"
    return told if profile.cycles else f"{told}: {_NO_CYCLES}"


def share(part: int, whole: int) -> str:
    """In percent."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _head(profile: Profile) -> str:
    lines = [summary(profile)]
    if profile.failure is not None:
        lines += ["the run failed in the last of these cycles:", profile.failure]
    return "\n".join(lines)


def table(
    title: str,
    rows: Sequence[Sequence[str]],
    num_texts: int = 1,
    max_rows: int | None = None,
    *,
    has_text_last: bool = False,
) -> str:
    """A table with a head row; empty without others.

    Args:
        title: above it.
        rows: of cells.
        num_texts: columns that begin in one place, from the first on; the others end in one.
        max_rows: of those below the head, the most that are shown; None for all.
        has_text_last: the last column begins in one place, too.
    """
    if len(rows) < 2:
        return ""
    kept = rows if max_rows is None else rows[: max_rows + 1]
    left = len(rows) - len(kept)
    more = [f"and {counted(left, 'row')} more"] if left else []
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    is_text = [number < num_texts for number in range(len(widths))]
    is_text[-1] |= has_text_last
    lines = (
        "  ".join(
            cell.ljust(width) if left_bound else cell.rjust(width)
            for cell, width, left_bound in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in kept
    )
    return "\n".join([title, *lines, *more])


def _states(profile: Profile) -> str:
    rows: Rows = [("state", "color", "main threads", "share", "microthreads")]
    rows += [
        (
            one.state,
            ", ".join(map(str, one.colors)),
            f"{one.main:,}",
            share(one.main, profile.pe_cycles),
            f"{one.microthreads:,}",
        )
        for one in tables.by_state(profile)
    ]
    return table("What threads did or waited for, cycles of all PEs", rows, 2)


def _advice(profile: Profile) -> str:
    rows: Rows = [("share", "of main threads")]
    rows += [(f"{100 * one.share:.1f}%", f"{one.state}: {one.text}") for one in advice(profile)]
    return table("What helps", rows, 0, has_text_last=True)


def _groups(profile: Profile, max_rows: int) -> str:
    rows: Rows = [("PEs", "at", "number", "scalar", "beats", "waits for data", "nothing to do")]
    for group in profile.groups:
        whole = group.num_pes * profile.cycles
        parts = (
            tables.main_cycles(group, "scalar"),
            tables.beats_of(group),
            sum(
                one.cycles
                for one in group.times
                if one.is_main and one.state.startswith(("input", "output", "fifo"))
            ),
            tables.main_cycles(group, "nothing"),
        )
        place = f"({group.x}, {group.y}) {group.width} x {group.height}"
        rows.append((group.name, place, f"{group.num_pes:,}", *(share(n, whole) for n in parts)))
    return table("Groups of PEs, shares of their cycles", rows, 2, max_rows)


def _code(kind: str, times: Sequence[CodeTime], profile: Profile, max_rows: int) -> str:
    has_notes = any(one.note for one in times)
    rows: Rows = [(kind, *["started by"] * has_notes, *_CODE_HEAD)]
    rows += [
        (
            one.name,
            *[one.note] * has_notes,
            f"{one.cycles:,}",
            share(one.cycles, profile.pe_cycles),
            *(f"{number:,}" for number in (one.taken, one.waited, one.operation)),
        )
        for one in times
    ]
    return table(f"Cycles of main threads by {kind}", rows, 1 + has_notes, max_rows)


def _lines(profile: Profile, max_rows: int) -> str:
    names = tables.short_names(profile)
    sources = {source.name: source.text.splitlines() for source in profile.sources}
    rows: Rows = [("line", *_CODE_HEAD, "times", "")]
    for one in tables.by_line(profile):
        cycles = one.cycles + one.operation
        rows.append(
            (
                f"{names[one.file]}:{one.line} ({one.function})",
                f"{cycles:,}",
                share(cycles, profile.pe_cycles),
                *(f"{n:,}" for n in (one.taken, one.waited, one.operation, one.executions)),
                "| " + written(sources.get(one.file, ()), one.line),
            )
        )
    return table("Cycles of main threads by line", rows, 1, max_rows, has_text_last=True)


def written(lines: Sequence[str], number: int) -> str:
    """A line of a source, without its indent; empty where the source is not known."""
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _roofs(profile: Profile) -> str:
    rows: Rows = [("a PE and cycle", "on average", "at most", "share", "by")]
    for one in tables.roofline(profile):
        best = "-" if one.best is None else f"{one.best:.3g}"
        part = "-" if one.best is None else f"{100 * one.share:.1f}%"
        rows.append((one.name, f"{one.rate:.4f}", best, part, one.why))
    return table("Roofline", rows, has_text_last=True)


def _traffic(profile: Profile) -> tuple[str, ...]:
    if profile.traffic is None:
        return ()
    links: Rows = [("way", "wavelets", "busiest PE", "wavelets there", "a cycle")]
    for one in profile.traffic.links:
        rate = f"{one.most / max(1, profile.cycles):.3f}"
        place = f"({one.x}, {one.y})"
        links.append((one.link, f"{one.wavelets:,}", place, f"{one.most:,}", rate))
    colors: Rows = [("color", "sent by cores", "hops")]
    colors += [(str(one.color), f"{one.sent:,}", f"{one.hops:,}") for one in profile.traffic.colors]
    return (
        table("Ways into routers and cores, at most a wavelet a cycle", links),
        table("Colors, wavelets", colors),
    )


def _memory(profile: Profile, max_rows: int) -> str:
    rows: Rows = [("program of PEs", "PEs", "data", "code, about", "left for the stack", "full")]
    for image in sorted(profile.images, key=lambda one: one.left_bytes):
        sizes = image.data_bytes, image.code_bytes, image.left_bytes
        full = share(_MEMORY_BYTES - image.left_bytes, _MEMORY_BYTES)
        rows.append((image.name, f"{image.num_pes:,}", *(f"{size:,}" for size in sizes), full))
    return table(f"Memory of a PE, of {_MEMORY_BYTES:,} bytes", rows, 1, max_rows)
