"""The proteins of a genome, found in it and translated by pyrodigal."""

from pathlib import Path

from openwafer.recipes.genome import fasta, genes


def make(folder: Path) -> None:
    """Write proteins.fasta."""
    found = (gene.translate().rstrip("*") for gene in genes())
    records = (fasta(f"protein-{number}", letters) for number, letters in enumerate(found, start=1))
    (folder / "proteins.fasta").write_text("".join(records), "utf-8")
