"""An editor debugs a run whose host goes on, and which traps in the end."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.debug.dap_client import Client, RefusedError, begun
from tests.sdk.debug.running_sum import debugger_of
from tests.sdk.debug.serving import served
from tests.sdk.debug.trapping_run import line_of, ran
from tests.tables import case

STORE = line_of("last = value;")
CALL = line_of("= doubled(")


@pytest.fixture(scope="module", params=[Arch.WSE2, case(Arch.WSE3, by_default=False)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    ran(made, request.param)
    return made


@pytest.fixture
def serving(folder: Path) -> Iterator[tuple[Client, threading.Thread]]:
    with served(lambda _asked: debugger_of(folder)) as made:
        yield made


@pytest.fixture
def client(serving: tuple[Client, threading.Thread]) -> Client:
    begun(serving[0], {})
    return serving[0]


def set_lines(client: Client, *lines: int) -> None:
    asked = [{"line": line} for line in lines]
    client.ask("setBreakpoints", source={"name": "pe.csl"}, breakpoints=asked)


def frames(client: Client) -> Any:
    return client.ask("stackTrace", threadId=1)["stackFrames"]


def evaluated(client: Client, expression: str) -> str:
    frame = frames(client)[0]["id"]
    return str(client.ask("evaluate", expression=expression, frameId=frame)["result"])


def test_a_trap_is_an_exception_at_its_line(client: Client) -> None:
    assert client.go("continue")["reason"] == "exception"
    told = client.ask("exceptionInfo", threadId=1)
    assert told["exceptionId"] == "fabric-trap"
    assert "an assertion failed" in told["description"]
    assert f"pe.csl:{line_of('@assert')}" in told["description"]


def test_the_way_back_from_a_trap_leads_to_its_values(client: Client) -> None:
    client.go("continue")
    set_lines(client, line_of("@assert"))
    client.go("reverseContinue")
    assert evaluated(client, "values[at]") == "16"


def test_an_expansion_is_a_frame_of_its_own(client: Client) -> None:
    set_lines(client, STORE)
    client.go("continue")
    found = frames(client)
    assert [(one["name"], one["line"]) for one in found] == [
        ("doubled (inlined)", STORE),
        ("main", CALL),
    ]
    assert found[0]["id"] != found[1]["id"]


def test_the_host_goes_on_between_two_stops(client: Client) -> None:
    set_lines(client, line_of("@assert"))
    seen = []
    while client.go("continue")["reason"] == "breakpoint":
        seen.append(evaluated(client, "at"))
    assert seen == ["0", "1", "3"]


def test_what_is_set_stays_for_the_hosts_next_launch(client: Client) -> None:
    set_lines(client, CALL)
    client.go("continue")
    scopes = client.ask("scopes", frameId=frames(client)[0]["id"])
    of = {one["name"]: one["variablesReference"] for one in scopes["scopes"]}["Globals"]
    client.ask("setVariable", variablesReference=of, name="last", value="9")
    set_lines(client)
    assert client.go("continue")["reason"] == "exception"


def test_a_data_breakpoint_goes_back_through_the_hosts_launches(client: Client) -> None:
    client.go("continue")
    info = client.ask("dataBreakpointInfo", name="last")
    client.ask("setDataBreakpoints", breakpoints=[{"dataId": info["dataId"]}])
    told = [client.go("reverseContinue")["text"].partition(",")[0] for _ in range(3)]
    assert told == ["last: 6 -> 8", "last: 5 -> 6", "last: 0 -> 5"]


def test_a_reverse_step_crosses_a_launch(client: Client) -> None:
    set_lines(client, line_of("sys.unblock_cmd_stream"))
    client.go("continue")
    set_lines(client, CALL)
    client.go("continue")
    client.go("stepBack", threadId=1)
    assert frames(client)[1]["line"] == line_of("sys.unblock_cmd_stream")
    assert evaluated(client, "last") == "5"


def test_a_stale_frame_is_refused(client: Client) -> None:
    set_lines(client, CALL)
    client.go("continue")
    frame = frames(client)[0]["id"]
    client.go("next", threadId=1)
    with pytest.raises(RefusedError, match="of a stop that is over"):
        client.ask("evaluate", expression="at", frameId=frame)
