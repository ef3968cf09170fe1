"""All systems of a run were started with the same settings, though those of the leader count."""

from collections.abc import Mapping, Sequence

from openwafer.diagnostics import error
from openwafer.training.collectives.group import Rank
from openwafer.training.session.systems import Systems

# The launcher's number counts, which each process may know by itself.
NOT_COMPARED = frozenset({"systems"})
MAX_SHOWN = 8


def require_same_settings(systems: Systems, own: Mapping[str, str]) -> None:
    """Refuse settings that differ by system; all of them call this, before there is a run.

    Args:
        systems: those of the run.
        own: of this system, by their keys.

    Raises:
        OpenwaferError: ``systems-config``, on all of them.
    """
    told = [dict(one) for one in systems.gathered(dict(own), "its config") if isinstance(one, dict)]
    differing = {
        key: rank
        for rank, one in zip(systems.ranks, told, strict=True)
        for key in (told[0].keys() | one.keys()) - NOT_COMPARED
        if told[0].get(key) != one.get(key)
    }
    if differing:
        notes = [_note(key, rank, told) for key, rank in sorted(differing.items())]
        ranks = ", ".join(sorted({str(rank) for rank in differing.values()}))
        raise error(
            "systems-config",
            f"{ranks} was started with other settings than {systems.ranks[0]}",
            notes=tuple(notes[:MAX_SHOWN]),
            help="start all of them with the same config and the same --set",
        )


def _note(key: str, rank: Rank, told: Sequence[Mapping[str, str]]) -> str:
    first, other = (one.get(key, "not set") for one in (told[0], told[rank.index]))
    return f"{key} is {first} on rank 0, and {other} on rank {rank.index}"
