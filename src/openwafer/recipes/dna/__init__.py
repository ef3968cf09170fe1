"""The genes of a genome, codon by codon."""
