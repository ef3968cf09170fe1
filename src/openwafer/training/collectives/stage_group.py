"""The connection that torch.distributed.pipelining passes tensors through."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore

from openwafer.diagnostics import error
from openwafer.training.collectives.joining import Meeting


@contextmanager
def default_group(meeting: Meeting, members: Sequence[int]) -> Iterator[None]:
    """Context in which some processes of a meeting are torch's default group; all of them enter it.

    Args:
        meeting: where they have met.
        members: their ranks, rising, this one's among them; no process is in two such groups.

    Raises:
        OpenwaferError: ``pipelined-group`` where the process has a default group already.
    """
    if dist.is_initialized():
        raise error(
            "pipelined-group",
            "this process has a default group of torch.distributed, and stages need it",
            help="begin the run before init_process_group, or leave streaming.mode out",
        )
    dist.init_process_group(
        "gloo",
        store=PrefixStore(f"stages-from-{members[0]}", meeting.store),
        rank=members.index(meeting.rank),
        world_size=len(members),
        timeout=timedelta(seconds=meeting.timeout_seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
