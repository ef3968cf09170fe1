"""Claims as one JSON file, as docs/formats/openwafer-claims.md describes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from openwafer.atomic_file import write_bytes
from openwafer.config import PathLike, path_of
from openwafer.figures import Figure
from openwafer.json_files import encode
from openwafer.planning.claims.claim import Case, Claim, Support

FORMAT = "openwafer-claims"
VERSION = 1


@dataclass(frozen=True)
class _Case:
    assumption: str
    inputs: tuple[Figure, ...]
    computed: Figure
    is_covered: bool


@dataclass(frozen=True)
class _Claim:
    name: str
    claimed: Figure | None
    least: float
    most: float
    support: Support
    cases: tuple[_Case, ...]
    implied: tuple[Figure, ...]
    remark: str


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    claims: tuple[_Claim, ...]


def write_claims(path: PathLike, claims: Sequence[Claim]) -> None:
    """Replace the file `path` by the claims. Raises OSError."""
    path = path_of(path, "path")
    content = _File(FORMAT, VERSION, tuple(map(_told, claims)))
    write_bytes(path, encode(content) + b"\n")


def _told(claim: Claim) -> _Claim:
    def of(case: Case) -> _Case:
        return _Case(case.assumption, case.inputs, case.computed, claim.covers(case))

    return _Claim(
        claim.name,
        claim.claimed,
        claim.least,
        claim.most,
        claim.support,
        tuple(map(of, claim.cases)),
        claim.implied,
        claim.remark,
    )
