"""The proteins of a genome, found in it and translated by pyrodigal."""

import importlib
from pathlib import Path

from openwafer.recipes.genome import fasta, genome


def make(folder: Path) -> None:
    """Write proteins.fasta."""
    bases = genome()
    finder = importlib.import_module("pyrodigal").GeneFinder()
    finder.train(bases)
    found = (gene.translate().rstrip("*") for gene in finder.find_genes(bases))
    records = (fasta(f"protein-{number}", letters) for number, letters in enumerate(found, start=1))
    (folder / "proteins.fasta").write_text("".join(records), "utf-8")
