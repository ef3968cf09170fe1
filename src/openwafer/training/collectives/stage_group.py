"""Connects stages: torch.distributed.pipelining passes tensors through it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from torch import distributed as dist

from openwafer.diagnostics import error
from openwafer.training.collectives.group import Waiting
from openwafer.training.collectives.joining import Meeting
from openwafer.training.torch_private import PrefixStore


@contextmanager
def default_group(meeting: Meeting, members: Sequence[int]) -> Iterator[None]:
    """Context in which some processes of a meeting are torch's default group; all of them enter it.

    Args:
        meeting: where they have met.
        members: their ranks, rising, this one's among them; no process is in two such groups.

    Raises:
        OpenwaferError: ``pipelined-group`` where the process has a default group already,
            ``rank-missing``, ``rank-lost`` where one of them is gone.
    """
    if dist.is_initialized():
        raise error(
            "pipelined-group",
            "this process has a default group of torch.distributed, and stages need it",
            help="begin the run before init_process_group, or leave streaming.mode out",
        )
    name, index = f"stages-from-{members[0]}", members.index(meeting.rank)
    ranks = meeting.meet(name, members)
    with Waiting(
        ranks[index], "the other stages", "to connect", meeting.timeout_seconds
    ).naming_the_lost():
        dist.init_process_group(
            "gloo",
            store=PrefixStore(name, meeting.store),
            rank=index,
            world_size=len(members),
            timeout=timedelta(seconds=meeting.timeout_seconds),
        )
    try:
        yield
    finally:
        dist.destroy_process_group()
