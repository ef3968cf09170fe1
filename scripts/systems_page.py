"""Writes what docs/guide/systems.md shows: the table of claims, and the pictures."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from openwafer import atomic_file
from openwafer.cli.system_pictures import draw_pictures
from tests.planning.claims.claims_table import TABLE, table

if __name__ == "__main__":
    atomic_file.write_text(TABLE, table())
    for path in draw_pictures(TABLE.parents[1] / "images"):
        print(f"wrote {path}")
