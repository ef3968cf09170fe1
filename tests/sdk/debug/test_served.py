"""`openwafer csl debug --dap` serves an editor by pipes or on a port."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openwafer.cli.csl_debug import debug
from tests.sdk.debug.dap_client import PATIENCE, Client, RefusedError, begun
from tests.sdk.debug.running_sum import line_of, ran
from tests.tables import case

COMMAND = (sys.executable, "-c", "from openwafer.cli import main; main()", "csl", "debug")
SCRIPT = """
import openwafer.sdk as wafer

print("this is no message")
with wafer.load("out").run() as run:
    run.launch("main", 4)
"""


def stopped_at_return(client: Client) -> bool:
    """Whether the run stops at a line."""
    lines = [{"line": line_of("return w")}]
    client.ask("setBreakpoints", source={"name": "pe.csl"}, breakpoints=lines)
    client.ask("configurationDone")
    client.event("stopped")
    return bool(client.go("continue")["reason"] == "breakpoint")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    ran(made)
    (made / "run.py").write_text(SCRIPT, encoding="utf-8")
    return made


@pytest.mark.parametrize(
    "given",
    [
        case({"script": ["run.py"]}, by_default=True, id="script"),
        case({"replay": "run.journal"}, by_default=False, id="journal"),
    ],
)
def test_an_editor_debugs_through_pipes(folder: Path, given: dict[str, object]) -> None:
    pipe = subprocess.PIPE
    command = (*COMMAND, "--dap")
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        client = Client(process.stdin, process.stdout)
        with pytest.raises(RefusedError, match="given are 0 ways to one"):
            client.ask("launch")
        begun(client, {"out": "out", **given})
        assert stopped_at_return(client)
        client.send("continue")
        client.close()
        assert process.wait() == 0
        client.forget()


@pytest.fixture
def port(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[int]:
    """Where a thread of this process waits for an editor; it ends with its client."""
    given: dict[str, Any] = dict.fromkeys(("script", "core", "run"))
    given |= {"out": folder / "out", "replay": folder / "run.journal", "is_served": False}
    with ThreadPoolExecutor() as thread:
        served = thread.submit(debug, port=0, **given)
        told = ""
        while not told and not served.done():
            told = capsys.readouterr().out
            time.sleep(0.001)
        yield int(told.rpartition(":")[2])
        served.result(PATIENCE)


def test_an_editor_debugs_a_journal_on_a_port_which_takes_one_client(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as one:
        client = Client(one.makefile("wb"), one.makefile("rb"))
        begun(client, {})
        with pytest.raises(ConnectionError, match="refused"):
            socket.create_connection(("127.0.0.1", port))
        assert stopped_at_return(client)
        client.ask("disconnect")
        client.close()
        client.forget()
