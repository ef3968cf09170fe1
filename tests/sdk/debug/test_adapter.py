"""An editor debugs a run by the Debug Adapter Protocol."""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.debug.dap_client import Client, RefusedError, begun
from tests.sdk.debug.running_sum import debugger_of, line_of, ran
from tests.sdk.debug.serving import SECONDS, served
from tests.tables import case

LOOP = line_of("total += square")
RETURN = line_of("return w")


@pytest.fixture(scope="module", params=[Arch.WSE3, case(Arch.WSE2, by_default=False)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that hangs at its end."""
    made = tmp_path_factory.mktemp("run")
    ran(made, hangs=True, arch=request.param)
    return made


@pytest.fixture
def serving(folder: Path) -> Iterator[tuple[Client, threading.Thread]]:
    """A client that has said nothing, and the thread of its adapter."""
    with served(lambda _asked: debugger_of(folder)) as made:
        yield made


@pytest.fixture
def client(serving: tuple[Client, threading.Thread]) -> Client:
    begun(serving[0], {})
    return serving[0]


def broken(client: Client, line: int, **options: Any) -> Any:
    """Set one breakpoint; gives what became of it."""
    lines = [{"line": line, **options}]
    (made,) = client.ask("setBreakpoints", source={"name": "pe.csl"}, breakpoints=lines)[
        "breakpoints"
    ]
    return made


def top(client: Client, pe: int = 0) -> Any:
    """The innermost frame of a PE."""
    return client.ask("stackTrace", threadId=pe + 1)["stackFrames"][0]


def value(client: Client, expression: str, pe: int = 0) -> str:
    frame = top(client, pe)["id"]
    return str(client.ask("evaluate", expression=expression, frameId=frame)["result"])


def at_loop(client: Client, condition: str = "i == 2 and me == 0") -> Any:
    broken(client, LOOP, condition=condition)
    return client.go("continue")


def listed(client: Client, scope: str) -> dict[str, Any]:
    """Variables of a scope of PE 0, by name."""
    scopes = client.ask("scopes", frameId=top(client)["id"])["scopes"]
    (reference,) = [one["variablesReference"] for one in scopes if one["name"] == scope]
    found = client.ask("variables", variablesReference=reference)["variables"]
    return {one["name"]: one | {"of": reference} for one in found}


def inner(client: Client, variable: Any, **part: int) -> dict[str, str]:
    """What a variable is made of."""
    reference = variable["variablesReference"]
    found = client.ask("variables", variablesReference=reference, **part)["variables"]
    return {one["name"]: one["value"] for one in found}


def test_what_the_debugger_can_do_is_said(serving: tuple[Client, threading.Thread]) -> None:
    able = begun(serving[0], {})
    assert able["supportsStepBack"]
    assert able["supportsDataBreakpoints"]
    assert able["supportsLogPoints"]


def test_a_run_begins_at_its_start(client: Client) -> None:
    assert client.go("configurationDone")["reason"] == "entry"


def test_a_run_goes_on_from_its_start_where_that_is_asked_for(
    serving: tuple[Client, threading.Thread],
) -> None:
    begun(serving[0], {"stopOnEntry": False})
    broken(serving[0], RETURN)
    assert serving[0].go("configurationDone")["reason"] == "breakpoint"


def test_a_breakpoint_stops_the_run_and_names_its_frames(client: Client) -> None:
    assert broken(client, RETURN) == {"id": 1, "verified": True, "line": RETURN}
    stopped = client.go("continue")
    assert (stopped["reason"], stopped["hitBreakpointIds"]) == ("breakpoint", [1])
    frames = client.ask("stackTrace", threadId=stopped["threadId"])["stackFrames"]
    assert [(one["name"], one["line"]) for one in frames] == [("square", RETURN), ("main", LOOP)]
    assert frames[0]["source"]["path"].endswith("pe.csl")


def test_a_breakpoint_on_a_comment_moves_or_is_refused(client: Client) -> None:
    assert broken(client, LOOP - 1)["line"] >= LOOP - 1
    refused = broken(client, 1000)
    assert not refused["verified"]
    assert "has no code from line 1000 on" in refused["message"]


def test_a_condition_lets_hits_pass(client: Client) -> None:
    at_loop(client)
    assert value(client, "i") == "2"


def test_a_hit_count_lets_hits_pass(client: Client) -> None:
    broken(client, LOOP, condition="me == 0", hitCondition="3")
    client.go("continue")
    assert value(client, "i") == "2"


def test_a_logpoint_tells_and_goes_on(client: Client) -> None:
    broken(client, LOOP, condition="me == 0", logMessage="i is {i}")
    client.ask("continue")
    texts = [client.event("output")["output"] for _ in range(4)]
    assert [text.partition(": ")[2] for text in texts] == [f"i is {i}\n" for i in range(4)]
    assert client.event("stopped")["reason"] == "exception"


def test_a_client_knows_that_the_run_goes_on_while_it_does(client: Client) -> None:
    broken(client, LOOP, logMessage="total is {total}")
    assert client.is_answered_before("output", "continue")


def test_a_function_stops_the_run(client: Client) -> None:
    asked = [{"name": "square"}, {"name": "cube"}]
    made, refused = client.ask("setFunctionBreakpoints", breakpoints=asked)["breakpoints"]
    assert made["verified"]
    assert "no function with code of its own is called 'cube'" in refused["message"]
    client.go("continue")
    assert top(client)["name"] == "square"


def test_steps_go_into_functions_over_them_and_out(client: Client) -> None:
    at_loop(client)
    client.go("stepIn", threadId=1)
    assert top(client)["name"] == "square"
    client.go("stepOut", threadId=1)
    client.go("stepBack", threadId=1)
    assert top(client)["name"] == "square"


def test_next_stays_in_its_function(client: Client) -> None:
    at_loop(client)
    client.go("next", threadId=1)
    assert (top(client)["name"], top(client)["line"]) == ("main", LOOP + 1)


def test_a_step_back_is_where_the_step_began(client: Client) -> None:
    at_loop(client)
    client.go("stepIn", threadId=1)
    assert client.go("stepBack", threadId=1)["reason"] == "step"
    assert top(client)["line"] == LOOP


def test_the_run_goes_back_to_the_hit_before(client: Client) -> None:
    at_loop(client, "me == 0")
    client.go("continue")
    client.go("reverseContinue")
    assert value(client, "i") == "0"
    assert client.go("reverseContinue")["reason"] == "entry"


def test_locals_have_their_types(client: Client) -> None:
    at_loop(client)
    found = {name: (one["type"], one["value"]) for name, one in listed(client, "Locals").items()}
    assert found["n"] == ("i16", "4")
    assert found["total"] == ("f32", "1")


def test_arrays_structs_and_pointers_open(client: Client) -> None:
    at_loop(client)
    found = listed(client, "Globals")
    assert inner(client, found["y"])["[0, 1]"] == "1"
    assert inner(client, found["pair"]) == {"a": "1", "b": "2.5"}
    assert inner(client, found["at"]) == {"*": "1"}
    assert found["shade"]["value"] == "Color.green"


def test_a_part_of_an_array_is_given(client: Client) -> None:
    at_loop(client)
    found = listed(client, "Globals")["y"]
    assert found["indexedVariables"] == 4
    assert list(inner(client, found, start=1, count=2)) == ["[0, 1]", "[1, 0]"]


def test_expressions_are_worked_out_in_a_frame(client: Client) -> None:
    at_loop(client)
    client.go("stepIn", threadId=1)
    frames = client.ask("stackTrace", threadId=1)["stackFrames"]
    above = client.ask("evaluate", expression="i + 1", frameId=frames[1]["id"])
    assert above == {"result": "3", "variablesReference": 0}
    with pytest.raises(RefusedError, match="nothing here is called i"):
        client.ask("evaluate", expression="i", frameId=frames[0]["id"])


def test_a_data_breakpoint_stops_where_an_element_changes(client: Client) -> None:
    at_loop(client, "i == 0 and me == 0")
    broken(client, LOOP, condition="false")
    info = client.ask("dataBreakpointInfo", name="y[1, 0]", frameId=top(client)["id"])
    asked = [{"dataId": info["dataId"]}]
    assert client.ask("setDataBreakpoints", breakpoints=asked)["breakpoints"][0]["verified"]
    stopped = client.go("continue")
    assert stopped["reason"] == "data breakpoint"
    assert stopped["text"] == "y[1, 0]: 0 -> 5, by its code"


def test_a_data_breakpoint_on_a_listed_variable_is_of_its_own_pe(client: Client) -> None:
    at_loop(client, "i == 0 and me == 1")
    client.ask("focus", pes=[[0, 0], [1, 0]])
    scopes = client.ask("scopes", frameId=top(client, 1)["id"])["scopes"]
    (of,) = (one["variablesReference"] for one in scopes if one["name"] == "Globals")
    info = client.ask("dataBreakpointInfo", name="half", variablesReference=of)
    assert info["description"] == "half on PE (1, 0) changes"


def test_a_data_breakpoint_is_of_the_frame_that_it_was_asked_in(client: Client) -> None:
    at_loop(client)
    client.go("stepIn", threadId=1)
    frames = client.ask("stackTrace", threadId=1)["stackFrames"]
    with pytest.raises(RefusedError, match="nothing here is called i"):
        client.ask("dataBreakpointInfo", name="i", frameId=frames[0]["id"])
    info = client.ask("dataBreakpointInfo", name="i", frameId=frames[1]["id"])
    (made,) = client.ask("setDataBreakpoints", breakpoints=[info])["breakpoints"]
    assert "nothing here is called" not in made.get("message", "")


def test_a_value_that_is_set_is_used(client: Client) -> None:
    at_loop(client)
    pair = listed(client, "Globals")["half"]
    told = client.ask("setVariable", variablesReference=pair["of"], name="half", value="8.5")
    warned = client.event("output")["output"]
    client.go("continue")
    assert warned.startswith("from here on it is another run")
    assert told == {"value": "8.5"}
    assert client.ask("evaluate", expression="half")["result"] == "10.5"


def test_going_back_undoes_what_was_set(client: Client) -> None:
    at_loop(client)
    pair = listed(client, "Globals")["half"]
    client.ask("setVariable", variablesReference=pair["of"], name="half", value="8.5")
    client.go("stepBack", threadId=1)
    assert value(client, "half") == "0.5"


def test_what_does_not_fit_is_not_set(client: Client) -> None:
    at_loop(client)
    half = listed(client, "Globals")["pair"]
    with pytest.raises(RefusedError, match="is no number"):
        client.ask("setVariable", variablesReference=half["of"], name="pair", value="1")


def test_a_deadlock_is_an_exception_with_its_reasons(client: Client) -> None:
    assert client.go("continue")["reason"] == "exception"
    told = client.ask("exceptionInfo", threadId=1)
    assert told["exceptionId"] == "fabric-deadlock"
    assert "PE (1, 0)" in told["description"]


def test_memory_of_a_variable_is_read(client: Client) -> None:
    at_loop(client)
    at = listed(client, "Globals")["pair"]["memoryReference"]
    read = client.ask("readMemory", memoryReference=at, count=2)
    assert base64.b64decode(read["data"]) == bytes([1, 0])
    beyond = client.ask("readMemory", memoryReference=at, offset=1 << 17, count=8)
    assert beyond["unreadableBytes"] == 8


def test_disassembly_begins_at_the_present_line(client: Client) -> None:
    at_loop(client)
    at = top(client)["instructionPointerReference"]
    asked = {"instructionOffset": -1000, "instructionCount": 1001}
    rows = client.ask("disassemble", memoryReference=at, **asked)["instructions"]
    assert (rows[-1]["address"], rows[-1]["line"]) == (at, LOOP)
    assert rows[0]["presentationHint"] == "invalid"
    rows = client.ask("disassemble", memoryReference=at, instructionCount=20)["instructions"]
    assert any("call" in one["instruction"] for one in rows)
    with pytest.raises(RefusedError, match="100,000 instructions are asked for"):
        client.ask("disassemble", memoryReference=at, instructionCount=100_000)


def test_an_editors_console_shows_the_machine(client: Client) -> None:
    at_loop(client)
    shown = client.ask("evaluate", expression="memory &pair, 1", context="repl")
    assert shown["result"].endswith(": 0001")
    with pytest.raises(RefusedError, match="nothing here is called routes"):
        client.ask("evaluate", expression="routes", context="watch")


def test_frames_of_one_stack_have_numbers_of_their_own(client: Client) -> None:
    at_loop(client)
    client.go("stepIn", threadId=1)
    frames = client.ask("stackTrace", threadId=1)
    assert len({one["id"] for one in frames["stackFrames"]}) == frames["totalFrames"] == 2
    part = client.ask("stackTrace", threadId=1, startFrame=1, levels=1)["stackFrames"]
    assert [one["name"] for one in part] == ["main"]


def test_threads_are_the_focus(client: Client) -> None:
    client.ask("focus", pes=[[1, 0]])
    assert client.ask("threads")["threads"] == [{"id": 2, "name": "PE (1, 0)"}]
    at_loop(client, "me == 0")
    assert [one["id"] for one in client.ask("threads")["threads"]] == [1, 2]
    with pytest.raises(RefusedError, match=r"there is no PE \(2, 0\)"):
        client.ask("focus", pes=[[2, 0]])


def test_the_run_ends_and_is_then_over(client: Client) -> None:
    stopped = client.go("continue")
    while stopped["reason"] != "end":
        stopped = client.go("continue")
    client.ask("continue")
    client.event("terminated")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("stackTrace", {"threadId": 99}),
        ("stackTrace", {"threadId": 0}),
        ("readMemory", {"memoryReference": hex(99 << 20), "count": 2}),
        ("source", {"sourceReference": 99}),
        ("stackTrace", {"threadId": []}),
        ("dataBreakpointInfo", {"name": "none", "variablesReference": 1}),
    ],
)
def test_what_there_is_not_is_refused_and_the_session_goes_on(
    client: Client, command: str, arguments: dict[str, Any]
) -> None:
    at_loop(client)
    listed(client, "Globals")
    with pytest.raises(RefusedError, match=r"there is no PE|cannot be read"):
        client.ask(command, **arguments)
    assert client.ask("threads")["threads"]


def test_what_is_unknown_or_unreadable_is_refused(client: Client) -> None:
    with pytest.raises(RefusedError, match="there is no request 'fly'"):
        client.ask("fly")
    with pytest.raises(RefusedError, match="its arguments cannot be read"):
        client.ask("setBreakpoints")
    with pytest.raises(RefusedError, match="of a stop that is over"):
        client.ask("variables", variablesReference=99)


def test_nothing_can_be_asked_before_the_launch(
    serving: tuple[Client, threading.Thread],
) -> None:
    with pytest.raises(RefusedError, match="no run is debugged yet"):
        serving[0].ask("threads")


def test_a_client_that_goes_away_leaves_nothing_running(
    serving: tuple[Client, threading.Thread],
) -> None:
    client, thread = serving
    begun(client, {})
    client.send("continue")
    client.close()
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_disconnect_ends_the_session(serving: tuple[Client, threading.Thread]) -> None:
    client, thread = serving
    begun(client, {})
    client.ask("disconnect")
    thread.join(SECONDS)
    assert not thread.is_alive()
