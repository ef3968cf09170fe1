"""The genes of a genome, a letter for each codon, so that a token is a codon."""

import string
from itertools import product
from pathlib import Path
from typing import Final

from openwafer.recipes.genome import genes

_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
LETTER_OF: Final = dict(zip(map("".join, product("TCAG", repeat=3)), _LETTERS, strict=True))
"""Codons in the order of a table of the genetic code."""


def make(folder: Path) -> None:
    """Write genes.txt, a gene a line."""
    lines = (letters_of(gene.sequence()) for gene in genes())
    (folder / "genes.txt").write_text("\n".join(lines) + "\n", "utf-8")


def letters_of(bases: str) -> str:
    """The codons of a gene, a letter each."""
    return "".join(LETTER_OF[bases[start : start + 3]] for start in range(0, len(bases), 3))
