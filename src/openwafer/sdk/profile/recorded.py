"""Profiles of runs that are over, from their journals."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.config import PathLike, path_of
from openwafer.sdk.host import Region, read_record, replay
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.host.operations import interruption
from openwafer.sdk.profile.critical_path import critical_path
from openwafer.sdk.profile.model import Profile
from openwafer.sdk.profile.taking import Grouping, check_groups, profile_of
from openwafer.sdk.profile.traffic import with_traffic
from openwafer.sdk.program.program import Program


def profile_of_journal(
    program: Program,
    journal: Journal,
    by: Grouping = Grouping.FILE,
    *,
    region: Region | None = None,
    has_record: bool = False,
    record: PathLike | None = None,
) -> Profile:
    """Do a run again with its time booked and its code counting, and take its profile.

    Args:
        program: the one that the run was of.
        journal: of the run.
        by: how PEs are grouped.
        region: of the PEs whose time is looked at; None for all.
        has_record: the run is recorded, too, for the loads of links and colors and the critical
            path.
        record: file that keeps what happens, also where these are not asked for.

    Raises:
        OpenwaferError: the journal is of another program, something comes out otherwise, there are
            no such PEs, or more than a profile has groups for.
    """
    kept = None if record is None else path_of(record, "record")
    pes = None
    if region is not None:
        region.check(program)
        pes = [program.number_of(x, y) for _, _, x, y in region.pes()]
    check_groups(program.width * program.height if pes is None else len(pes), by)
    with TemporaryDirectory() as folder:
        file = kept or (Path(folder) / "run.record" if has_record else None)
        again = replay(program, journal, has_account=True, has_line_cycles=True, record=file)
        assert again.booked is not None
        profile = profile_of(again.booked, pes, by)
        if has_record and file is not None:
            events = read_record(file)
            profile = with_traffic(profile, events)
            profile = replace(profile, critical_path=critical_path(events, program))
    if journal.interrupted_at is None:
        return profile
    return replace(profile, failure=interruption(journal.interrupted_at))
