"""Finds the rank that was lost first: a rank that loses another ends, and is lost in turn."""

import pickle
from concurrent.futures import Future
from datetime import timedelta
from threading import Thread
from typing import Final, NamedTuple

from openwafer.training.torch_private import Store

KEY: Final = "openwafer/lost"
ASKING_SECONDS: Final = 5.0
"""The store may be gone with the rank that has it."""
SHARE_OF_TIMEOUT: Final = 4
"""Ranks that wait for each other in a row time out within so small a part of the time-out."""


class Loss(NamedTuple):
    """A rank reports that it has lost another one.

    Attributes:
        other: the rank or ranks that it has lost, in words.
        message: text of its error.
    """

    other: str
    message: str


class FirstLoss:
    """Knows the first loss of a meeting; a rank reports its loss before it ends.

    Args:
        store: the meeting's store of keys.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def after(self, here: str, own: Loss, *, patience_seconds: float = 0.0) -> Loss:
        """The first loss, which is one's own where no other was told, or none can be asked.

        Args:
            here: this rank, in words.
            own: what it has lost.
            patience_seconds: how long to wait for what that one has lost, where time was out: ranks
                that wait for each other in a row come to that in any order.
        """
        found: Future[Loss] = Future()

        def ask() -> None:
            try:
                self._store.set(_key(here), _written(own))
                told = _read(self._store.compare_set(KEY, "", _written(own)))
                patient = patience_seconds > 0
                found.set_result(self._behind(here, own, patience_seconds) if patient else told)
            except RuntimeError:
                found.set_result(own)

        Thread(target=ask, name="first-loss", daemon=True).start()
        try:
            return found.result(ASKING_SECONDS + patience_seconds)
        except TimeoutError:
            return own

    def _behind(self, here: str, loss: Loss, patience_seconds: float) -> Loss:
        """The loss of the last one in a row that waited for each other."""
        seen = {here}
        while loss.other not in seen:
            seen.add(loss.other)
            try:
                self._store.wait([_key(loss.other)], timedelta(seconds=patience_seconds))
            except RuntimeError:
                break
            loss = _read(self._store.get(_key(loss.other)))
        return loss


def _key(rank: str) -> str:
    return f"{KEY}/{rank}"


def _written(loss: Loss) -> str:
    return pickle.dumps(loss).hex()


def _read(told: bytes) -> Loss:
    loss: Loss = pickle.loads(bytes.fromhex(told.decode()))
    return loss
