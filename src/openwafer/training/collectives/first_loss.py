"""The rank that was lost first: who loses one ends too, and is lost to others in turn."""

import pickle
from concurrent.futures import Future
from threading import Thread
from typing import Final, NamedTuple

from torch._C._distributed_c10d import Store

KEY: Final = "openwafer/lost"
ASKING_SECONDS: Final = 5.0
"""The store may be gone with the rank that has it."""


class Loss(NamedTuple):
    """What a rank says that has lost another one.

    Attributes:
        other: the one that it has lost, or several, in words.
        message: of its error.
    """

    other: str
    message: str


class FirstLoss:
    """Knows the first loss of a meeting; whoever meets one tells it before it ends.

    Args:
        store: of the meeting.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def after(self, own: Loss) -> Loss:
        """The first loss, which is one's own where no other was told, or none can be asked."""
        found: Future[Loss] = Future()

        def ask() -> None:
            try:
                told = self._store.compare_set(KEY, "", pickle.dumps(own).hex())
                found.set_result(pickle.loads(bytes.fromhex(told.decode())))
            except RuntimeError:
                found.set_result(own)

        Thread(target=ask, name="first-loss", daemon=True).start()
        try:
            return found.result(ASKING_SECONDS)
        except TimeoutError:
            return own
