"""The genome of a bacterium that the package pyrodigal carries, GCF_001457455.1 of RefSeq."""

import gzip
import importlib
from collections.abc import Iterable
from typing import Final, Protocol

from openwafer.recipes.packages import folder_of

_FILE: Final = "tests/data/GCF_001457455.1_NCTC11397_genomic.fna.gz"
_LINE: Final = 80


class Gene(Protocol):
    """What is asked of a gene that pyrodigal has found."""

    def sequence(self) -> str:
        """Its bases in the direction in which it is read, three a codon."""

    def translate(self) -> str:
        """Its amino acids, a letter each; a star is its end."""


def genes() -> Iterable[Gene]:
    """The genes that pyrodigal finds in it."""
    with gzip.open(folder_of("pyrodigal") / _FILE) as lines:
        bases = b"".join(line.strip() for line in lines if not line.startswith(b">"))
    finder = importlib.import_module("pyrodigal").GeneFinder()
    finder.train(bases)
    found: Iterable[Gene] = finder.find_genes(bases)
    return found


def fasta(name: str, letters: str) -> str:
    """A record of a FASTA file."""
    lines = [letters[start : start + _LINE] for start in range(0, len(letters), _LINE)]
    return "\n".join((f">{name}", *lines, ""))
