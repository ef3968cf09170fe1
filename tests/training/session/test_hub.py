"""An export goes to a hub, here one that this process answers for."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from openwafer.cli.app import app
from openwafer.diagnostics import OpenwaferError
from openwafer.training.session.hub import push


@dataclass
class Hub:
    """Repositories by name, with their files, and what is refused or answered instead."""

    address: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    is_closed: bool = False
    answers_instead: str | None = None

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.repositories.setdefault(name, {})
            if asked.get("visibility") == "private":
                self.private.add(name)
            return {"url": f"{self.address}/{name}"}
        name, _, verb = path.removeprefix("/api/models/").rpartition("/main")[0].rpartition("/")
        if verb == "preupload":
            files = json.loads(body)["files"]
            return {"files": [plain(file["path"]) for file in files]}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.repositories[name][line["value"]["path"]] = content
        return {"commitUrl": f"{self.address}/{name}/commit/1", "commitOid": "1"}


def plain(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": None}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    # Tests are offline, and the library asks for no more than that.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told = {"error": "you may not"} if found.is_closed else found.answer(self.path, body)
            answer = json.dumps(told).encode()
            if found.answers_instead is not None:
                answer = found.answers_instead.encode()
            self.send_response(403 if found.is_closed else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)))
    return tmp_path


def test_all_files_of_an_export_are_there(hub: Hub, exported: Path) -> None:
    address = push(exported, "me/small", endpoint=hub.address)
    assert address == f"{hub.address}/me/small/commit/1"
    assert hub.repositories["me/small"] == {
        file.name: file.read_bytes() for file in exported.iterdir()
    }
    assert hub.private == {"me/small"}


def test_a_hub_that_refuses_is_told_in_its_words(hub: Hub, exported: Path) -> None:
    hub.is_closed = True
    with pytest.raises(OpenwaferError, match=r"does not take .* as 'me/small': .*403"):
        push(exported, "me/small", endpoint=hub.address)


def test_a_name_that_is_none_is_told_before_anything_is_sent(hub: Hub, exported: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"'me/a/b': .*\n.*name a repository as owner/name"):
        push(exported, "me/a/b", endpoint=hub.address)
    assert hub.repositories == {}


@pytest.mark.parametrize("answer", ["", "no JSON"], ids=["none", "of no hub"])
def test_a_server_that_does_not_answer_as_a_hub_is_told(
    hub: Hub, exported: Path, answer: str
) -> None:
    hub.answers_instead = answer
    with pytest.raises(OpenwaferError, match=r"127\.0\.0\.1:\d+ does not take .* as 'me/small': "):
        push(exported, "me/small", endpoint=hub.address)


def test_a_name_is_looked_at_before_a_run_is_exported(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"'me/a/b': .*\n.*name a repository as owner/name"):
        app(["export", str(tmp_path), str(tmp_path / "exported"), "--hub", "me/a/b"],
            standalone_mode=False)  # fmt: skip


def test_a_folder_that_is_no_export_is_not_sent(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"has no config\.json, so that it is no export"):
        push(tmp_path, "me/small", endpoint=hub.address)
