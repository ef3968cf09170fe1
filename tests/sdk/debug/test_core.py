"""What a run has left is looked at, and does not go on."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.debug import Console, Stand, stand_of
from openwafer.sdk.host import core_file
from tests.cli.command import run_command
from tests.sdk.debug.dap_client import RefusedError, begun
from tests.sdk.debug.running_sum import debugger_of, ran
from tests.sdk.debug.serving import served
from tests.tables import case


@pytest.fixture(scope="module", params=[Arch.WSE3, case(Arch.WSE2, by_default=False)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that hangs, with its journal and its core."""
    made = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(core_file.CORE_VARIABLE, str(made / "cores"))
        ran(made, hangs=True, arch=request.param)
    return made


@pytest.fixture
def stand(folder: Path) -> Stand:
    core = core_file.read(folder / "cores" / "0000.core")
    return stand_of(core, wafer.load(folder / "out").program)


def answer(console: Console, command: str) -> str:
    console.stdout = io.StringIO()
    console.onecmd(console.precmd(command))
    return console.stdout.getvalue()


def test_it_holds_what_the_debugger_finds_at_the_failure(folder: Path, stand: Stand) -> None:
    debugger = debugger_of(folder)
    halt = debugger.go_on()
    assert (stand.halt.cycle, stand.halt.text) == (halt.cycle, halt.text)
    assert stand.simulator.waiting() == debugger.simulator.waiting()
    for pe in range(2):
        assert stand.simulator.pe_state(pe) == debugger.simulator.pe_state(pe)
        for one in stand.look(pe).globals():
            told = (run.look(pe).evaluator.text(one.name) for run in (stand, debugger))
            assert len(set(told)) == 1


def test_the_console_looks_and_refuses_to_go(stand: Stand) -> None:
    shown = io.StringIO()
    console = Console(stand, io.StringIO(), shown)
    assert "fabric-deadlock" in shown.getvalue()
    assert answer(console, "print shade") == "Color Color.red\n"
    assert "unblock_cmd_stream" in answer(console, "why")
    for command in ("continue", "back", "break 3", "set half = 1", "came-from", "cycle 3"):
        told = answer(console, command)
        assert f"the moment at cycle {stand.halt.cycle}: it is looked at" in told, command


def test_an_editor_looks_and_is_refused_to_go(stand: Stand) -> None:
    with served(lambda _asked: stand) as (client, _):
        begun(client, {})
        assert client.go("configurationDone")["reason"] == "exception"
        (made,) = client.ask(
            "setBreakpoints", source={"name": "pe.csl"}, breakpoints=[{"line": 20}]
        )["breakpoints"]
        assert "it is looked at" in made["message"]
        assert client.ask("evaluate", expression="half")["result"] == "2.5"
        for command in ("continue", "stepIn", "stepBack", "reverseContinue"):
            with pytest.raises(RefusedError, match="does not go on, go back or change"):
                client.ask(command, threadId=1)


def test_the_command_finds_the_program_beside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("p half\nstep\n"))
    done = run_command("csl", "debug", "--core", folder / "cores" / "0000.core")
    assert done.code == 0
    assert "f16 2.5\n" in done.out
    assert "it is looked at, and does not go on" in done.out


def test_a_journal_is_debugged_with_the_program_beside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = shutil.copy(folder / "run.journal", folder / "cores" / "0000.journal")
    monkeypatch.setattr("sys.stdin", io.StringIO("c\np half\n"))
    assert "f16 2.5\n" in run_command("csl", "debug", "--replay", journal).out
    refused = run_command("csl", "debug", "--replay", folder / "run.journal").err
    assert "name its folder: openwafer csl debug OUT --replay JOURNAL" in refused


@pytest.mark.parametrize(
    ("content", "code"), [(None, "core-missing"), (b"PK", "core-damaged"), (b"", "core-damaged")]
)
def test_no_core_is_refused(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "x.core"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OpenwaferError) as raised:
        core_file.read(path)
    assert raised.value.diagnostics[0].code == code


def test_a_truncated_core_and_one_of_another_version_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    whole = folder / "cores" / "0000.core"
    cut, other = tmp_path / "cut.core", tmp_path / "other.core"
    cut.write_bytes(whole.read_bytes()[:-400])
    with other.open("wb") as file:
        np.savez(file, format=np.str_("openwafer-core"), version=np.int64(9))
    for path, told in ((cut, "is no core, or damaged"), (other, "version 9")):
        with pytest.raises(OpenwaferError, match=told):
            core_file.read(path)


def test_a_core_of_another_program_is_refused(folder: Path, tmp_path: Path) -> None:
    is_wse3 = wafer.load(folder / "out").program.arch is Arch.WSE3
    ran(tmp_path, arch=Arch.WSE2 if is_wse3 else Arch.WSE3)
    core = core_file.read(folder / "cores" / "0000.core")
    with pytest.raises(OpenwaferError, match="is of the program"):
        core.machine_of(wafer.load(tmp_path / "out").program)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [("OPENWAFER_ENGINE", "interpreter"), ("OPENWAFER_THREADS", "2"), ("OPENWAFER_CHECK", "error")],
)
def test_cores_of_other_engines_and_threads_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(core_file.CORE_VARIABLE, str(tmp_path / "cores"))
    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        ran(tmp_path, hangs=True)
    core = core_file.read(tmp_path / "cores" / "0000.core")
    stand = stand_of(core, wafer.load(tmp_path / "out").program)
    assert stand.look(1).evaluator.text("pair.a") == "i16 3"
    assert any("PE (1, 0)" in told for told in stand.simulator.waiting())
