"""Queries of scripts that could run on many processes: here one makes batches and computes."""

__all__ = [
    "get_ordinal",
    "get_streaming_rank",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "num_receivers",
    "num_streamers",
    "num_tasks",
]


def is_master_ordinal(local: bool = False) -> bool:
    """Whether this process is the first: it is the only one."""
    return True


def get_ordinal() -> int:
    """The number of this process, from 0."""
    return 0


def num_tasks() -> int:
    """How many processes run the script."""
    return 1


def is_streamer() -> bool:
    """Whether this process makes batches."""
    return True


def num_streamers() -> int:
    """How many processes make batches."""
    return 1


def get_streaming_rank() -> int:
    """The number of this process among those that make batches."""
    return 0


def is_receiver() -> bool:
    """Whether this process gets losses."""
    return True


def num_receivers() -> int:
    """How many processes get losses."""
    return 1
