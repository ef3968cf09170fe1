"""The wafer SDK: a CSL compiler, a cycle-level fabric simulator and the host runtime."""
