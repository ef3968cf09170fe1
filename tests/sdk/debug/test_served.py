"""`openwafer csl debug --dap` serves an editor in a process of its own."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.debug.dap_client import Client, RefusedError, begun
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ran(tmp_path)
    (tmp_path / "run.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "given",
    [
        case({"script": ["run.py"]}, by_default=False, id="script"),
        case({"replay": "run.journal"}, by_default=True, id="journal"),
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


@pytest.mark.slow
def test_an_editor_debugs_a_journal_on_a_port_which_takes_one_client(folder: Path) -> None:
    command = (*COMMAND, "out", "--replay", "run.journal", "--port", "0")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as one:
            client = Client(one.makefile("wb"), one.makefile("rb"))
            begun(client, {})
            with pytest.raises(ConnectionError, match="refused"):
                socket.create_connection(("127.0.0.1", port))
            assert stopped_at_return(client)
            client.ask("disconnect")
            client.close()
            client.forget()
        assert process.wait() == 0
