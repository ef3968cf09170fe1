"""Writes what docs/guide/recipes.md shows of each recipe."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from openwafer import atomic_file
from tests.recipes.recipes_table import TABLE, table

if __name__ == "__main__":
    atomic_file.write_text(TABLE, table())
