"""An adapter on a thread, and its client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from openwafer.sdk.debug import Adapter, Messages
from openwafer.sdk.debug.adapter import Open
from tests.sdk.debug.dap_client import Client, piped

SECONDS = 60.0


@contextmanager
def served(open_run: Open) -> Iterator[tuple[Client, threading.Thread]]:
    """A client that has said nothing, and the thread of its adapter, which ends with it."""
    (asked, to_adapter), (answers, from_adapter) = piped(), piped()
    adapter = Adapter(Messages(asked, from_adapter), open_run)
    thread = threading.Thread(target=adapter.serve, daemon=True)
    thread.start()
    client = Client(to_adapter, answers)
    yield client, thread
    client.close()
    thread.join(SECONDS)
    for end in (asked, from_adapter):
        end.close()
    client.forget()
