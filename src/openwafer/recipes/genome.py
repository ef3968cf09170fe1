"""The genome of a bacterium that the package pyrodigal carries, GCF_001457455.1 of RefSeq."""

import gzip
from typing import Final

from openwafer.recipes.packages import folder_of

_FILE: Final = "tests/data/GCF_001457455.1_NCTC11397_genomic.fna.gz"
_LINE: Final = 80


def genome() -> bytes:
    """Its bases, A, C, G and T, one behind the other."""
    with gzip.open(folder_of("pyrodigal") / _FILE) as lines:
        return b"".join(line.strip() for line in lines if not line.startswith(b">"))


def fasta(name: str, letters: str) -> str:
    """A record of a FASTA file."""
    lines = [letters[start : start + _LINE] for start in range(0, len(letters), _LINE)]
    return "\n".join((f">{name}", *lines, ""))
