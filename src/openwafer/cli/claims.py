"""``openwafer claims`` tells and writes published claims."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from openwafer.cli.tables import plain_console, value_of
from openwafer.diagnostics import error
from openwafer.figures import Figure
from openwafer.planning.claims import Claim, compute_claims, write_claims

NAME_WIDTH, VALUE_WIDTH = 66, 14


def tell_claims(json: Path | None, pictures: Path | None) -> None:
    """Compute all claims, tell them, and write them down where files are asked for."""
    claims = compute_claims()
    console = plain_console()
    for claim in claims:
        _tell(console, claim)
    if json is not None:
        write_claims(json, claims)
        print(f"wrote {json}")
    if pictures is not None:
        _draw(pictures)


def _draw(folder: Path) -> None:
    from openwafer.cli.system_pictures import draw_pictures

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise error(
            "option-value",
            f"--pictures: cannot make the folder {folder}: {cause.strerror}",
            help="give the path of a folder",
        ) from cause
    for path in draw_pictures(folder):
        print(f"wrote {path}")


def _tell(console: Console, claim: Claim) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(claim.name, width=NAME_WIDTH)
    table.add_column("", justify="right", min_width=VALUE_WIDTH)
    table.add_column("is", min_width=9)
    table.add_column(str(claim.support))
    if claim.claimed is not None:
        _add(table, "claimed", claim.claimed, claim.claimed.source)
    for case in claim.cases:
        word = "as claimed" if claim.covers(case) else "not as claimed"
        _add(table, case.assumption, case.computed, word)
    for figure in claim.implied:
        _add(table, figure.name, figure, figure.source)
    console.print(table)
    if claim.remark:
        console.print(claim.remark, highlight=False)
    console.print()


def _add(table: Table, name: str, figure: Figure, word: str) -> None:
    table.add_row(name, value_of(figure), str(figure.origin), word)
