"""Patterns as bytes: bitmask, offsets, CSR and N:M; the layouts stand in docs/formats."""
