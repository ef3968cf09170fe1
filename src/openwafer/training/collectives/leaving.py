"""A process that ends leaves its connections as they are, however many messages are under way.

The library's destructor waits for messages that lost ranks never send, until they have timed out,
and meanwhile the other ranks wait for this process. The operating system closes connections of a
process that has ended, and those ranks are told at once.
"""

import atexit
from ctypes import py_object, pythonapi
from weakref import WeakSet

from torch import distributed as dist

_LEFT_AT_EXIT: WeakSet[dist.ProcessGroupGloo] = WeakSet()


def leave_at_exit(connections: dist.ProcessGroupGloo) -> None:
    """Do not destroy connections that are still there when the interpreter ends."""
    _LEFT_AT_EXIT.add(connections)


@atexit.register
def _leave() -> None:
    for connections in _LEFT_AT_EXIT:
        pythonapi.Py_IncRef(py_object(connections))
