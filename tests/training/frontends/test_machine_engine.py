"""The engine answers the vendor's process: sessions of graphs, their weights, what they leave."""

import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.official.machine import wire
from openwafer.training.frontends.official.machine.engine import Engine
from openwafer.training.frontends.official.machine.launch import run_official
from tests.training.frontends.cirh_graphs import HIDDEN, ROWS, decaying_products

WEIGHT = "state.model.blocks.0.weight"


class Client:
    """The other side's end."""

    def __init__(self, connection: "Connection[bytes, bytes]") -> None:
        self.connection = connection

    def call(self, call: str, value: Tensor | None = None, **rest: Any) -> tuple[Any, Any]:
        tensors = {} if value is None else {"value": value}
        wire.send(self.connection, {"version": wire.VERSION, "call": call} | rest, tensors)
        return wire.receive(self.connection)

    def start(self, depth: int) -> None:
        answer, _ = self.call("compile", text=decaying_products(depth), name="cirh.mlir")
        self.call("start", graph=answer["graph"])


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    ours, theirs = (Connection(one.detach()) for one in socket.socketpair())
    served = Thread(target=Engine(tmp_path / "stores").serve, args=(ours,))
    served.start()
    yield Client(theirs)
    theirs.close()
    served.join()


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0),
        torch.zeros(0, 2),
        torch.tensor([[True], [False]]),
        torch.arange(6, dtype=torch.bfloat16).view(2, 3).T,
    ],
    ids=["scalar", "empty", "bool", "transposed"],
)
def test_tensors_of_any_kind_arrive(value: Tensor) -> None:
    ends = [Connection(one.detach()) for one in socket.socketpair()]
    wire.send(ends[0], {"call": "set"}, {"value": value})
    head, found = wire.receive(ends[1])
    assert head == {"call": "set"}
    assert (found["value"].dtype, found["value"].tolist()) == (value.dtype, value.tolist())


def test_a_client_may_end_before_it_has_its_answer(tmp_path: Path) -> None:
    ours, theirs = (Connection(one.detach()) for one in socket.socketpair())
    text = decaying_products(1)
    head = {"version": wire.VERSION, "call": "compile", "text": text, "name": "cirh.mlir"}
    wire.send(theirs, head, {})
    theirs.close()
    Engine(tmp_path).serve(ours)


def test_a_session_runs_and_its_weights_are_carried_over(client: Client) -> None:
    client.start(1)
    client.call("set", torch.full((HIDDEN, HIDDEN), 8.0), resource=WEIGHT)
    wire.send(client.connection, {"version": 1, "call": "step"},
              {"input_0": torch.ones(ROWS, HIDDEN)})  # fmt: skip
    assert wire.receive(client.connection)[1]["loss"] == 8.0 * HIDDEN * ROWS * HIDDEN
    client.call("keep", resource=WEIGHT, id=7)
    client.start(2)
    client.call("carry", resource=WEIGHT, id=7)
    assert client.call("get", resource=WEIGHT)[1]["value"].unique().tolist() == [4.0]
    assert "no session has left a tensor 7" in client.call("kept", id=7)[0]["refusal"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"call": "get", "resource": WEIGHT}, "machine-idle"),
        ({"call": "fly"}, "calls 'fly'"),
        ({"call": "get", "version": 2}, "speaks version 2 of our messages"),
        ({"call": "compile", "name": "a.mlir",
          "text": decaying_products(1).replace("cirh.Mul", "cirh.Fft")}, "cirh.Fft: 1, the first"),
    ],
    ids=["idle", "call", "version", "graph"],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(client: Client, call: dict[str, Any], told: str) -> None:
    assert told in client.call(**call)[0]["refusal"]


def test_a_python_without_the_packages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"official-python.*nope has no .*No such file"):
        run_official(tmp_path / "nope", ["cszoo"])
