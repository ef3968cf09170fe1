"""What scripts ask of a cluster and of the vendor's summaries: this process is all there is."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CSSlurmClusterResolver", "cs_disable_summaries", "cs_enable_summaries"]


class _Cluster:
    def as_dict(self) -> dict[str, list[str]]:
        """Names and addresses of the processes."""
        return {"chief": ["localhost"]}


class CSSlurmClusterResolver:
    """The processes of a script: this one.

    Args:
        options: how others would be reached; there are none.
    """

    def __init__(self, **options: object) -> None:
        self._cluster = _Cluster()

    def cluster_spec(self) -> _Cluster:
        """All processes."""
        return self._cluster

    def get_task_info(self) -> tuple[str, int]:
        """Kind and number of this one."""
        return "chief", 0


@contextmanager
def cs_enable_summaries() -> Iterator[None]:
    """Context in which the vendor's machine writes summaries; there is none."""
    yield


cs_disable_summaries = cs_enable_summaries
