"""What cannot be debugged is refused in words, and whoever goes away leaves nothing running."""

import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.debug import Debugger
from openwafer.sdk.host import journal as journals
from openwafer.sdk.program.debug_info import DebugInfo
from openwafer.sdk.program.digest import digest_of
from tests.cli.command import run_command
from tests.sdk.debug.dap_client import Client, begun
from tests.sdk.debug.running_sum import CODE, debugger_of, line_of, ran
from tests.sdk.debug.serving import SECONDS, served
from tests.sdk.debug.test_served import COMMAND


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    ran(made, hangs=True)
    return made


def test_a_program_without_debug_information_is_refused(folder: Path) -> None:
    program = replace(wafer.load(folder / "out").program, debug=DebugInfo())
    journal = replace(journals.read(folder / "run.journal"), program=digest_of(program))
    with pytest.raises(OpenwaferError, match="has no debug information"):
        Debugger(program, journal)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none.journal", "there is no journal at"),
        ("out/out.csl", "there is no journal at"),
        ("cut.journal", "bytes of words lie behind its head|is damaged"),
        ("layout.csl", "layout.csl is damaged"),
    ],
)
def test_a_foreign_or_truncated_recording_is_refused(folder: Path, name: str, told: str) -> None:
    (folder / "cut.journal").write_bytes((folder / "run.journal").read_bytes()[:-20])
    done = run_command("csl", "debug", folder / "out", "--replay", folder / name)
    assert done.code != 0
    assert any(part in done.err for part in told.split("|")), done.err


def test_several_ways_to_one_run_are_refused(folder: Path) -> None:
    journal = folder / "run.journal"
    done = run_command("csl", "debug", folder / "out", "--replay", journal, "--core", journal)
    assert "given are 2 ways to one" in done.err


def test_a_breakpoint_on_a_comment_moves_to_the_next_line_with_code(tmp_path: Path) -> None:
    text = CODE.replace("fn main(n: i16)", "// what follows\nfn main(n: i16)")
    ran(tmp_path, code=text)
    breakpoints = debugger_of(tmp_path).breakpoints
    comment = 1 + text[: text.index("// what")].count("\n")
    assert breakpoints.add("pe.csl", comment).line > comment + 1


@pytest.mark.parametrize("command", ["stepIn", "next", "stepBack", "reverseContinue"])
def test_a_client_that_goes_away_in_a_step_ends_the_session(folder: Path, command: str) -> None:
    with served(lambda _asked: debugger_of(folder)) as (client, thread):
        begun(client, {})
        client.ask("setBreakpoints", source={"name": "pe.csl"}, breakpoints=[{"line": 20}])
        client.go("continue")
        client.send(command, threadId=1)
        client.close()
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.mark.slow
def test_a_process_whose_client_is_cut_off_ends(folder: Path) -> None:
    command = (*COMMAND, "out", "--replay", "run.journal", "--port", "0")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as one:
            client = Client(one.makefile("wb"), one.makefile("rb"))
            begun(client, {})
            client.ask("setBreakpoints", **_at_return())
            client.send("continue")
            one.shutdown(socket.SHUT_RDWR)
            client.close()
            client.forget()
        assert process.wait(SECONDS) == 0


def _at_return() -> dict[str, object]:
    lines = [{"line": line_of("return w")}]
    return {"source": {"name": "pe.csl"}, "breakpoints": lines}
