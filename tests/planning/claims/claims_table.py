"""The table of claims in the guide, docs/guide/claims-table.inc."""

from collections.abc import Iterator
from pathlib import Path

from openwafer.cli.tables import value_of
from openwafer.planning.claims import Claim, compute_claims

TABLE = Path(__file__).parents[3] / "docs/guide/claims-table.inc"


def table() -> str:
    """Its text; `scripts/systems_page.py` writes it."""
    head = ["| claim | claimed | computed | case | covered |", "|---|---|---|---|---|"]
    rows = [row for claim in compute_claims() for row in _rows(claim)]
    return "\n".join([*head, *rows]) + "\n"


def _rows(claim: Claim) -> Iterator[str]:
    claimed = value_of(claim.claimed) if claim.claimed else "no number"
    yield f"| **{claim.name}** | {claimed} | | *{claim.support}* | |"
    for case in claim.cases:
        word = "yes" if claim.covers(case) else "no"
        yield f"| | | {value_of(case.computed)} | {case.assumption} | {word} |"
    for figure in claim.implied:
        yield f"| | | {value_of(figure)} | follows: {figure.name} | |"
