"""Messages of the Debug Adapter Protocol: JSON behind a header with its length."""

import json
import threading
from collections.abc import Iterator
from typing import IO, Any, Final, TypeAlias

Message: TypeAlias = dict[str, Any]
_LENGTH: Final = b"content-length:"
_LARGEST: Final = 1 << 24
"""Bytes of a message at most."""


class Messages:
    """Reads what a client sends, until it goes away, and sends to it."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()
        self._number = 0

    def __iter__(self) -> Iterator[Message]:
        """Messages in their order; what is none ends them."""
        while (length := self._next_length()) is not None:
            try:
                message = json.loads(self._source.read(length))
            except (OSError, ValueError):
                return
            if isinstance(message, dict):
                yield message

    def _next_length(self) -> int | None:
        length = None
        try:
            while line := self._source.readline().strip():
                if line.lower().startswith(_LENGTH):
                    length = int(line[len(_LENGTH) :])
        except (OSError, ValueError):
            return None
        return length if length is not None and 0 < length <= _LARGEST else None

    def send(self, message: Message) -> None:
        """Send a message under the next number; to a client that has gone away, nothing."""
        with self._lock:
            self._number += 1
            content = json.dumps({"seq": self._number, **message}).encode()
            try:
                self._sink.write(b"Content-Length: %d\r\n\r\n%b" % (len(content), content))
                self._sink.flush()
            except OSError:
                return
