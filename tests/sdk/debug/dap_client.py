"""A client of the Debug Adapter Protocol, written by the protocol's page alone."""

import json
import os
import queue
import threading
from collections.abc import Mapping
from typing import IO, Any

PATIENCE = 120.0
"""Seconds that an answer may take."""


class RefusedError(Exception):
    """A request was answered with success false."""


class Client:
    """Sends requests, and keeps what comes until it is asked for."""

    def __init__(self, sink: IO[bytes], source: IO[bytes]) -> None:
        self._sink, self._source = sink, source
        self._number = 0
        self._responses: queue.Queue[dict[str, Any]] = queue.Queue()
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while header := self._source.readline():
            length = int(header.removeprefix(b"Content-Length: "))
            assert self._source.readline() == b"\r\n"
            message = json.loads(self._source.read(length))
            (self._events if message["type"] == "event" else self._responses).put(message)

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request; gives its number."""
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command}
        content = json.dumps({**message, "arguments": arguments}).encode()
        self._sink.write(f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
        self._sink.flush()
        return self._number

    def ask(self, command: str, **arguments: Any) -> Any:
        """The body of the answer to a request."""
        number = self.send(command, **arguments)
        answer = self._responses.get(timeout=PATIENCE)
        assert (answer["request_seq"], answer["command"]) == (number, command)
        if not answer["success"]:
            raise RefusedError(answer["message"])
        return answer["body"]

    def event(self, name: str) -> Any:
        """The body of the next event of a name."""
        while (event := self._events.get(timeout=PATIENCE))["event"] != name:
            pass
        return event["body"]

    def is_answered_before(self, name: str, command: str, **arguments: Any) -> bool:
        """Whether a request is answered before the next event of a name."""
        self.send(command, **arguments)
        answer = self._responses.get(timeout=PATIENCE)
        while (event := self._events.get(timeout=PATIENCE))["event"] != name:
            pass
        return bool(answer["seq"] < event["seq"])

    def go(self, command: str, **arguments: Any) -> Any:
        """Where the run stops behind a request."""
        self.ask(command, **arguments)
        return self.event("stopped")

    def close(self) -> None:
        """Go away without a word."""
        self._sink.close()

    def forget(self) -> None:
        """Let go of what came, once nothing comes any more."""
        self._reader.join(PATIENCE)
        self._source.close()


def piped() -> tuple[IO[bytes], IO[bytes]]:
    """Both ends of a pipe: to read from, and to write to."""
    source, sink = os.pipe()
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb")


def begun(client: Client, arguments: Mapping[str, Any]) -> Any:
    """Say hello and launch; gives what the debugger can do."""
    able = client.ask("initialize", adapterID="openwafer")
    client.ask("launch", **arguments)
    client.event("initialized")
    return able
