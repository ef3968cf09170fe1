"""Files of a profile, each in the form that its name asks for."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.sdk.host import Record, read_record
from openwafer.sdk.profile import file
from openwafer.sdk.profile.model import Profile
from openwafer.sdk.profile.page import profile_page
from openwafer.sdk.profile.speedscope import speedscope_text
from openwafer.sdk.profile.text import profile_text
from openwafer.sdk.profile.timeline import Timeline, timeline, trace_of
from openwafer.sdk.profile.waveform import vcd_text
from openwafer.sdk.program.program import Program

FORMS: Final[Mapping[str, Callable[[Profile], str]]] = MappingProxyType(
    {
        ".speedscope.json": speedscope_text,
        ".json": file.content,
        ".html": profile_page,
        ".txt": profile_text,
    }
)
"""What a file holds, by the end of its name; of two that fit the first."""


def form_of(path: PathLike) -> Callable[[Profile], str]:
    """What makes the content of a file. Raises OpenwaferError for a name of no form."""
    name = path_of(path, "path").name
    for end, form in FORMS.items():
        if name.endswith(end):
            return form
    raise error(
        "profile-form",
        f"the name of {path} does not say which form the profile shall have",
        help=f"end it with {', '.join(FORMS)}",
    )


def write_profile(profile: Profile, path: PathLike) -> None:
    """Write a profile to a file.

    As the end of its name says: ``.json``, ``.speedscope.json`` for that viewer, a page ``.html``,
    tables ``.txt``.

    Raises OpenwaferError for another name, OSError where the disk refuses.
    """
    write_text(path_of(path, "path"), form_of(path)(profile))


TIMELINES: Final[Mapping[str, Callable[[Timeline], str]]] = MappingProxyType(
    {".vcd": vcd_text, ".json": lambda found: trace_of(found).to_json()}
)
"""What a file of a timeline holds, by the end of its name."""


def write_timeline(record: Record | PathLike, program: Program, path: PathLike) -> None:
    """Write what happened in a run along its cycles.

    Args:
        record: of the run, or its file.
        program: the one that ran.
        path: ``.vcd`` for Surfer and GTKWave, ``.json`` for Perfetto, a cycle a microsecond.

    Raises:
        OpenwaferError: another name, a record that is damaged or of another program.
        OSError: the disk refuses.
    """
    record = record if isinstance(record, Record) else path_of(record, "record")
    path = path_of(path, "path")
    if path.suffix not in TIMELINES:
        raise error(
            "timeline-form",
            f"the name of {path} does not say which form the timeline shall have",
            help=f"end it with {', '.join(TIMELINES)}",
        )
    found = record if isinstance(record, Record) else read_record(record)
    write_text(path, TIMELINES[path.suffix](timeline(found, program)))
