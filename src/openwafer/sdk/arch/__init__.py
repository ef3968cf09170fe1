"""The numbers of each wafer generation and the names of its operations."""
