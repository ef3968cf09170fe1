"""Molecules, written as SMILES."""
