"""Serves the page to this machine's browser, and to nobody else.

The token of an address is all that a reader has to know; a page of another origin does not know it,
and is refused if it did: by the name of the host that it asks for, and by its origin.
"""

import os
import re
import secrets
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from openwafer import json_files
from openwafer.diagnostics import OpenwaferError, error
from openwafer.view.export import MODULES, page, text_of
from openwafer.view.shown import Going, Shown, Way

if TYPE_CHECKING:
    from openwafer.view.symbols import Symbols

_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_HTML: Final = "text/html; charset=utf-8"
_BINARY: Final = "application/octet-stream"
_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self';"
    " img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'"
)
_REPORT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Viewer:
    """A server of one run, on a port of 127.0.0.1.

    Args:
        run: what is shown.
        port: 0 for any that is free.
        is_live: the run goes on, and more of it may be shown later.

    Attributes:
        url: the page, with its token.
        doing: what is done for pages meanwhile, as the begin of a sentence.

    Raises OSError where the port is taken. Close it in the end.
    """

    def __init__(self, run: Shown, port: int = 0, *, is_live: bool = False) -> None:
        self._runs = {0: (run, _Content(run.content))}
        self._told = self.doing = ""
        self.is_live = is_live
        self._token = secrets.token_urlsafe(16)
        self._symbols: Symbols | None = None
        self._opening = threading.Lock()
        viewer = self

        class Request(_Request):
            own = viewer

        self._server = _Server(("127.0.0.1", port), Request)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/{self._token}/"

    @property
    def version(self) -> int:
        """How often more was shown."""
        return max(self._runs)

    @property
    def run(self) -> Shown:
        """What is shown."""
        return self._runs[self.version][0]

    def content_of(self, version: str) -> "_Content | None":
        """What a page of some version reads, the newest without one; None where it is gone."""
        found = self._runs.get(int(version) if version.isdecimal() else self.version)
        return None if found is None else found[1]

    def show(self, run: Shown, *, is_over: bool) -> None:
        """Show more of a run from now on; pages that are open still have what they showed."""
        number = self.version
        self._runs = {number: self._runs[number], number + 1: (run, _Content(run.content))}
        self._told = ""
        self.is_live = not is_over

    def tell(self, text: str, doing: str = "") -> None:
        """Let pages say why no more is shown, and what is done for them meanwhile."""
        self._told, self.doing = text, doing

    def progress(self) -> bytes:
        """The newest version, whether more may come, what is in its way or done for it, as JSON."""
        told = {"version": self.version, "is_live": self.is_live, "told": self._told}
        return json_files.encode(told | {"doing": self.doing})

    def serve(self) -> None:
        """Answer until :meth:`close`."""
        self._server.serve_forever(0.1)

    def close(self) -> None:
        """End :meth:`serve`, and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        if self._symbols is not None:
            self._symbols.close()

    def may_ask(self, path: str, headers: dict[str, str]) -> bool:
        """Whether a request has the token, and comes from no other origin."""
        hosts = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        return (
            secrets.compare_digest(path.split("/")[1].encode(), self._token.encode())
            and headers.get("host") in hosts
            and (origin is None or origin.removeprefix("http://") in hosts)
            and site in ("none", "same-origin")
        )

    def symbols(self, query: dict[str, int], condition: str) -> bytes:
        """What a PE holds at a cycle, or where a way leads from there, as JSON; or a mistake."""
        pe, way = (query["x"], query["y"]), Way(query.get("way", Way.HERE))
        line = (query["source"], query["line"]) if "line" in query else None
        going = Going(way, line, condition, query.get("page", 0))
        try:
            found = self._opened().at(pe, query["cycle"], going)
            return json_files.encode(found)
        except OpenwaferError as found:
            return json_files.encode({"error": str(found)})

    def _opened(self) -> "Symbols":
        """What looks at memory; from the first request on, as it takes its time to begin."""
        begin = self.run.symbols
        with self._opening:
            if self._symbols is None and begin is not None:
                self._symbols = begin()
        if self._symbols is None:
            told = "there is no journal of the run, so its memory cannot be computed"
            raise error("view-no-journal", told)
        return self._symbols


class _Content:
    """Bytes that are shown, or those of a file as it is now, also once another one has its name."""

    def __init__(self, content: bytes | Path) -> None:
        self.part: Callable[[int, int], bytes]
        if isinstance(content, bytes):
            self.size, self.part = len(content), lambda begin, end: content[begin:end]
            return
        file = os.open(content, os.O_RDONLY)
        self.size, self.part = os.fstat(file).st_size, partial(_read, file)
        weakref.finalize(self, os.close, file)


def _read(file: int, begin: int, end: int) -> bytes:
    """Bytes of an open file, by however many reads the system wants for them."""
    parts = []
    while begin < end and (part := os.pread(file, end - begin, begin)):
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of a mistake of ours; a browser that goes away is none."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    own: Viewer
    protocol_version = "HTTP/1.1"
    server_version = "openwafer"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not self.own.may_ask(self.path, headers):
            told = b"this is not the address that `openwafer view` has shown\n"
            self._answer(HTTPStatus.FORBIDDEN, told, "text/plain")
            return
        asked = urlsplit(self.path)
        name = asked.path.split("/", 2)[-1]
        given = {key: one[0] for key, one in parse_qs(asked.query).items()}
        if name == "run.view":
            self._columns(headers.get("range", ""), given.get("version", ""))
        elif name == "symbols":
            self._symbols(given)
        elif name == "progress":
            self._answer(HTTPStatus.OK, self.own.progress(), "application/json")
        else:
            self._page(name)

    def _page(self, name: str) -> None:
        run = self.own.run
        if name == "":
            nonce = secrets.token_urlsafe(16)
            modules = {one: f"./{one}.js" for one in MODULES}
            live = self.own.version if self.own.is_live else None
            report = "" if run.report else None
            text = page(modules, nonce, report=report, live=live, doing=self.own.doing)
            self._answer(HTTPStatus.OK, text.encode(), _HTML, _POLICY.format(nonce))
        elif name.removesuffix(".js") in MODULES:
            self._answer(HTTPStatus.OK, text_of(name).encode(), "text/javascript; charset=utf-8")
        elif name == "report.html" and run.report:
            self._answer(HTTPStatus.OK, run.report.encode(), _HTML, _REPORT_POLICY)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such file\n", "text/plain")

    def _symbols(self, given: dict[str, str]) -> None:
        condition = given.pop("condition", "")
        if {"x", "y", "cycle"} <= given.keys() and all(map(str.isdecimal, given.values())):
            query = {key: int(one) for key, one in given.items()}
            way, has_line = query.get("way", Way.HERE), "line" in query
            needs_line = way in (Way.LINE, Way.LINE_BACK)
            is_whole = ("source" in query) == has_line >= needs_line >= bool(condition)
            if way in set(Way) and is_whole:
                found = self.own.symbols(query, condition)
                self._answer(HTTPStatus.OK, found, "application/json")
                return
        told = (
            b"symbols?x=COLUMN&y=ROW&cycle=CYCLE[&way=0 to 4][&source=N&line=N][&page=N],"
            b" as numbers, of ways to lines [&condition=TEXT]\n"
        )
        self._answer(HTTPStatus.BAD_REQUEST, told, "text/plain")

    def _columns(self, wanted: str, version: str) -> None:
        """The file of columns, or a range of its bytes."""
        content = self.own.content_of(version)
        if content is None:
            self._answer(
                HTTPStatus.GONE, b"more is shown by now: load the page again\n", "text/plain"
            )
            return
        size = content.size
        asked = _RANGE.fullmatch(wanted)
        if asked is None:
            self._answer(HTTPStatus.OK, content.part(0, size), _BINARY)
            return
        begin, end = int(asked[1]), min(size, int(asked[2] or size - 1) + 1)
        if begin >= end:
            told = f"bytes {begin} to {end - 1} of {size}\n".encode()
            self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, told, "text/plain")
            return
        self._range = f"bytes {begin}-{end - 1}/{size}"
        self._answer(HTTPStatus.PARTIAL_CONTENT, content.part(begin, end), _BINARY)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, policy: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if policy:
            self.send_header("Content-Security-Policy", policy)
        if status is HTTPStatus.PARTIAL_CONTENT:
            self.send_header("Content-Range", self._range)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing: the address with its token stands in each request."""
