"""What passes between the ranks of a run (SwarmX in the literature)."""
