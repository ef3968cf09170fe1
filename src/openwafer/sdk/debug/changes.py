"""What has changed a word that is watched, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.debug.breakpoints import Breakpoint, Seen
from openwafer.sdk.debug.values import Values
from openwafer.sdk.fabric.stepping import Change, Stepping
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.program.program import Program

ITS_CODE: Final = "its code"


def change_of(one: Breakpoint, changes: Sequence[Change], values: Values) -> str:
    """The value of a breakpoint before and now; `values` is of its PE."""
    assert one.value is not None
    now = values.again(one.value)
    before = bytearray(now.content)
    for change in changes:
        for k, byte in enumerate(change.before.to_bytes(WORD_BYTES, "little")):
            at = WORD_BYTES * change.word.address + k - (one.value.address or 0)
            if 0 <= at < len(before):
                before[at] = byte
    old = values.text(replace(now, content=bytes(before)))
    return f"{one.name.removesuffix(' changes')}: {old} -> {values.text(now)}"


def writer_of(
    change: Change, seen: Seen, program: Program, journal: Journal, stepping: Stepping
) -> str:
    """Who has changed a word just now."""
    return next(_writers(change, seen, program, journal, stepping))


def _writers(
    change: Change, seen: Seen, program: Program, journal: Journal, stepping: Stepping
) -> Iterator[str]:
    if seen.host is not None:
        operation = journal.entries[seen.host].operation
        yield f"operation {seen.host} of the host ({type(operation).__name__})"
    for beat in stepping.beats_to(change.word):
        where = program.text_of_place(beat.place)
        yield f"microthread {beat.slot}: @{beat.operation}, at {where}"
    yield ITS_CODE
