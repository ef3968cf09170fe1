"""Profiles of runs that are over, from their journals."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.diagnostics import error
from openwafer.sdk.host import Region, read_record, replay
from openwafer.sdk.host import journal as journals
from openwafer.sdk.host.journal import Journal, program_beside
from openwafer.sdk.host.operations import interruption
from openwafer.sdk.profile.critical_path import critical_path
from openwafer.sdk.profile.model import Profile
from openwafer.sdk.profile.taking import Grouping, check_groups, profile_of
from openwafer.sdk.profile.traffic import with_traffic
from openwafer.sdk.program import file as programs
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.program import Program


def profile_of_journal(
    program: Program,
    journal: Journal,
    by: Grouping = Grouping.FILE,
    *,
    region: Region | None = None,
    has_record: bool = False,
) -> Profile:
    """Do a run again with its time booked and its code counting, and take its profile.

    Args:
        program: the one that the run was of.
        journal: of the run.
        by: how PEs are grouped.
        region: of the PEs whose time is looked at; None for all.
        has_record: the run is recorded, too, for the loads of links and colors and the critical
            path.

    Raises:
        OpenwaferError: the journal is of another program, something comes out otherwise, there are
            no such PEs, or more than a profile has groups for.
    """
    pes = None
    if region is not None:
        region.check(program)
        pes = [program.number_of(x, y) for _, _, x, y in region.pes()]
    check_groups(program.width * program.height if pes is None else len(pes), by)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.record" if has_record else None
        again = replay(program, journal, has_account=True, has_line_cycles=True, record=file)
        assert again.booked is not None
        profile = profile_of(again.booked, pes, by)
        if file is not None:
            record = read_record(file)
            profile = with_traffic(profile, record)
            profile = replace(profile, critical_path=critical_path(record, program))
    if journal.interrupted_at is None:
        return profile
    return replace(profile, failure=interruption(journal.interrupted_at))


def runs_in(folder: Path, program: Program | None = None) -> list[tuple[Program, Journal]]:
    """Runs whose journals lie in a folder, in their order, each with its program.

    Args:
        folder: of journals, with the programs beside them.
        program: only its runs; None for those of all programs.

    Raises:
        OpenwaferError: there is no run, or none of the program.
    """
    kept = journals.kept_in(folder)
    if not kept:
        raise error(
            "profile-no-run",
            "the script has run no program on the simulated fabric",
            help="profile a script that loads a program and runs it: SdkRuntime(...).load(), run()",
        )
    if program is None:
        return [(programs.read(program_beside(folder, one.program)), one) for one in kept]
    wanted = digest_of(program)
    runs = [(program, one) for one in kept if one.program == wanted]
    if not runs:
        others = ", ".join(sorted({one.program[:12] for one in kept}))
        raise error(
            "profile-foreign-run",
            f"the script has run other programs, {others}, and none is {wanted[:12]}, the one that"
            " was asked for",
            help="name the folder that the script runs, as it is compiled now",
        )
    return runs
