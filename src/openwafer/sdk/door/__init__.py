"""The wafer from Python: compile, run, arrays in and out."""
