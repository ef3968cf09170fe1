"""Answers the vendor's process: its graphs run here, and its weights lie in our store."""

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.official.graph import Graph
from openwafer.training.frontends.official.machine import wire
from openwafer.training.frontends.official.operators import DTYPES
from openwafer.training.frontends.official.runner import GraphRunner, refuse_unknown
from openwafer.training.frontends.official.text import read_graph

Answer = tuple[dict[str, Any], Mapping[str, Tensor]]


@dataclass(frozen=True)
class _Kept:
    """A resource that a later session may want, in the store of the session that made it."""

    runner: GraphRunner
    resource: str


class Engine:
    """The machine's end: compiled graphs, the session that runs, and what earlier ones left.

    Args:
        folder: where each session's store is on disk; None keeps them in DRAM.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._graphs: list[Graph] = []
        self._num_sessions = 0
        self._runner: GraphRunner | None = None
        self._kept: dict[int, _Kept] = {}
        self._calls = {
            "compile": self._compile, "start": self._start, "set": self._set, "carry": self._carry,
            "step": self._step, "get": self._get, "keep": self._keep, "kept": self._get_kept,
            "forget": self._forget,
        }  # fmt: skip

    def serve(self, connection: "Connection[bytes, bytes]") -> None:
        """Answer until the other side ends. What a call is refused for is the answer to it."""
        try:
            while True:
                head, tensors = wire.receive(connection)
                try:
                    answer, made = self.answer(head, tensors)
                except OpenwaferError as refusal:
                    answer, made = {"refusal": str(refusal)}, {}
                wire.send(connection, answer, made)
        except (EOFError, ConnectionError):
            pass  # It may end before it has its answer.
        finally:
            self.close()

    def answer(self, head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Answer:
        """Do what a message asks. Raises ``machine-version``, or why it cannot be done."""
        if head.get("version") != wire.VERSION or head["call"] not in self._calls:
            raise error(
                "machine-version",
                f"the vendor's process speaks version {head.get('version')} of our messages, and "
                f"calls {head.get('call')!r}; here it is version {wire.VERSION}",
                help="start both from one installation, by openwafer official",
            )
        return self._calls[head["call"]](head, tensors)

    def close(self) -> None:
        """End all stores."""
        held = {one.runner for one in self._kept.values()}
        if self._runner is not None:
            held.add(self._runner)
        for one in held:
            one.close()
        self._kept.clear()
        self._runner = None

    def _compile(self, head: Mapping[str, Any], _: Mapping[str, Tensor]) -> Answer:
        graph = read_graph(head["text"], head["name"])
        refuse_unknown(graph)
        self._graphs.append(graph)
        dtypes = {one.input_name: str(DTYPES[one.type.dtype])
                  for one in graph.arguments if one.input_name}  # fmt: skip
        resources = [name for name, _ in graph.resources]
        return {"graph": len(self._graphs) - 1, "inputs": dtypes, "resources": resources}, {}

    def _start(self, head: Mapping[str, Any], _: Mapping[str, Tensor]) -> Answer:
        self._num_sessions += 1
        folder = self._folder and self._folder / f"session-{self._num_sessions}"
        before = self._runner
        self._runner = GraphRunner(self._graphs[head["graph"]], folder)
        self._close_unused(before)
        return {}, {}

    @property
    def _running(self) -> GraphRunner:
        if self._runner is None:
            raise error("machine-idle", "no session has started", help="start one with its graph")
        return self._runner

    def _set(self, head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Answer:
        self._running.write(head["resource"], tensors["value"])
        return {}, {}

    def _carry(self, head: Mapping[str, Any], _: Mapping[str, Tensor]) -> Answer:
        kept = self._of(head)
        self._running.write(head["resource"], kept.runner.read(kept.resource))
        return self._forget(head, {})

    def _step(self, _: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Answer:
        return {}, self._running.step(tensors)

    def _get(self, head: Mapping[str, Any], _: Mapping[str, Tensor]) -> Answer:
        return {}, {"value": self._running.read(head["resource"])}

    def _keep(self, head: Mapping[str, Any], _: Mapping[str, Tensor]) -> Answer:
        self._kept[head["id"]] = _Kept(self._running, head["resource"])
        return {}, {}

    def _get_kept(self, head: Mapping[str, Any], _: Mapping[str, Tensor]) -> Answer:
        kept = self._of(head)
        return {}, {"value": kept.runner.read(kept.resource)}

    def _forget(self, head: Mapping[str, Any], _: Mapping[str, Tensor]) -> Answer:
        kept = self._kept.pop(head["id"], None)
        self._close_unused(kept.runner if kept else None)
        return {}, {}

    def _of(self, head: Mapping[str, Any]) -> _Kept:
        if head["id"] not in self._kept:
            raise error("machine-kept", f"no session has left a tensor {head['id']}",
                        help="keep it at the end of its session")  # fmt: skip
        return self._kept[head["id"]]

    def _close_unused(self, runner: GraphRunner | None) -> None:
        is_used = runner is self._runner or any(one.runner is runner for one in self._kept.values())
        if runner is not None and not is_used:
            runner.close()
