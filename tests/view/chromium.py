"""A headless Chromium, driven by its DevTools protocol over two pipes."""

import base64
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
WIDTH, HEIGHT = 1440, 900
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    " --disable-background-networking --disable-component-update --remote-debugging-pipe"
)


class Page:
    """One page; each call waits for the browser's answer."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = os.fdopen(to_browser, "wb"), os.fdopen(from_browser, "rb")
        self._rest = b""
        self._number = 0
        self._session = ""
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for name in ("Page", "Runtime"):
            self.call(f"{name}.enable")
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def call(self, method: str, **given: object) -> dict[str, Any]:
        """Do something; what the browser says of it."""
        self._number += 1
        told: dict[str, object] = {"id": self._number, "method": method, "params": given}
        if self._session:
            told["sessionId"] = self._session
        self._out.write(json.dumps(told).encode() + b"\0")
        self._out.flush()
        while (answer := self._next()).get("id") != self._number:
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(answer["params"]))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        found: dict[str, Any] = answer["result"]
        return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in.fileno(), 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        """Let go of the pipes, by which the browser ends."""
        self._out.close()
        self._in.close()

    def open(self, url: str) -> None:
        """Go to a page, and wait until it shows its run."""
        self.call("Page.navigate", url=url)
        ready = "document.body?.dataset.ready"
        wait = f"const f = () => {ready} ? go({ready}) : setTimeout(f, 20); f();"
        assert self.run(f"new Promise((go) => {{ {wait} }})") == "yes"

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.press(*box)

    def press(self, x: float, y: float) -> None:
        """Press the mouse at a place."""
        for kind in ("mousePressed", "mouseReleased"):
            place = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **place)

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            given = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **given)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the page, once it has drawn."""
        self.run("new Promise((go) => setTimeout(go, 600))")
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def chromium_page(folder: Path) -> Iterator[Page]:
    """A page of a browser of its own, whose profile lies in a folder."""
    assert CHROMIUM is not None
    (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
    command = f"exec {shlex.quote(CHROMIUM)} {_FLAGS} --user-data-dir={shlex.quote(str(folder))}"
    line = ["bash", "-c", f"{command} 3<&{read_in} 4>&{write_out}"]
    with (folder.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(line, pass_fds=(read_in, write_out), stdout=log, stderr=log)
        os.close(read_in)
        os.close(write_out)
        page = Page(write_in, read_out)
        try:
            yield page
        finally:
            page.close()
            process.terminate()
            process.wait()
