"""Runs a script of the vendor's front end whose machine is our engine, in the script's own Python.

Started as a file: `python stand_in.py SCRIPT ARGUMENT ...`, where nothing of openwafer can be
imported. SCRIPT is a file, or `cszoo`. The variable `OPENWAFER_ENGINE_SOCKET` has the number of the
open socket to the engine.
"""

import importlib.util
import itertools
import os
import runpy
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import cerebras.appliance.cluster.client as cluster_client
import cerebras.pytorch as cstorch
import torch
from cerebras.appliance.appliance_client import fw_user_deserialize
from cerebras.appliance.pb.ws.cross_compile_state_pb2 import CrossCompileState
from cerebras.pytorch import cerebras_pytorch_lib
from cerebras.pytorch.backend import current_backend_impl, ltc_backend
from cerebras.pytorch.core.appliance import ApplianceMode
from cerebras.pytorch.storage.utils import lazy_tensor_data_wrapper
from cerebras.pytorch.utils.nest import visit_device_tensors

_FOUND = importlib.util.spec_from_file_location(
    "openwafer_wire", Path(__file__).with_name("wire.py")
)
assert _FOUND is not None
assert _FOUND.loader is not None
wire: Any = importlib.util.module_from_spec(_FOUND)
_FOUND.loader.exec_module(wire)

ZOO = "cerebras.modelzoo.cli.main"


class Engine:
    """The other end: one call at a time, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Any = Connection(int(os.environ[wire.SOCKET_VARIABLE]))

    def call(self, call: str, tensors: Any = None, **arguments: Any) -> tuple[Any, Any]:
        """What the engine answers. Raises RuntimeError with its words where it refuses."""
        with self._lock:
            head = {"version": wire.VERSION, "call": call, **arguments}
            wire.send(self._connection, head, tensors or {})
            answer, made = wire.receive(self._connection)
        if "refusal" in answer:
            raise RuntimeError(answer["refusal"])
        return answer, made


ENGINE = Engine()


class Machine(ApplianceMode):  # type: ignore[misc]
    """What the front end asks of its machine. Steps run when something of them is asked for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.compile_resp = None
        self.weight_names: dict[str, str] = {}
        self.auxilliary_state_names: dict[str, str] = {}
        self.skipped_weights = set()
        self._iteration = -1
        self._batches: Iterator[Any] = iter(())
        self._outputs: dict[str, torch.Tensor] = {}
        self._stepping = ThreadPoolExecutor(1)

    def __del__(self) -> None:
        """There is nothing to clean."""

    compile_resp: Any = None
    skipped_weights: Any = None

    @property
    def grpc_client(self) -> "Machine":
        """Who answers what would go over the net."""
        return self

    @contextmanager
    def build_worker_image(self, should_skip: bool = False) -> Iterator[None]:
        yield

    def get_sidecar_image(self) -> None:
        return None

    def set_sidecar_image(self, image: Any) -> None:
        pass

    def compute_compile_hash(self, cirh_str: str, *rest: Any) -> int:
        return hash((cirh_str, *map(str, rest)))

    def compile(
        self, batch_size: int, cirh_str: str, cross_compile_state: Any = None, *rest: Any
    ) -> Any:
        """Have the engine read the graph, which refuses what it cannot run."""
        answer, _ = ENGINE.call("compile", text=cirh_str, name="cirh.mlir")
        return SimpleNamespace(
            **answer,
            cache_compile_dir="",
            cross_compile_state=cross_compile_state or CrossCompileState(),
            perf_info=SimpleNamespace(algo_flops=0, supported_flops=0),
        )

    def check_compile_compatibility(self) -> Any:
        return SimpleNamespace(code=0, message="")

    def copy_to(self, appliance: "Machine") -> None:
        appliance.compile_resp = self.compile_resp

    def execute(
        self,
        run_request: Any,
        cleanup_stack: Any,
        initial_state_dict: Any = None,
        appliance_weights: Any = None,
        has_modified_seed: Any = None,
    ) -> None:
        """Start a session: weights are sent, or carried over from the last one."""
        known = set(self.compile_resp.resources)
        ENGINE.call("start", graph=self.compile_resp.graph)
        self.skipped_weights = set(initial_state_dict) - known
        for name in initial_state_dict.keys() & known:
            value = cstorch.to_numpy(lazy_tensor_data_wrapper(initial_state_dict[name]))
            ENGINE.call("set", {"value": _tensor(value)}, resource=name)
        for name, weight in appliance_weights.items():
            info = weight.get_appliance_info()
            if name in known:
                ENGINE.call("carry", resource=name, id=info.uid)
            info.state = cerebras_pytorch_lib.ApplianceInfoState.InBuffer
        self._num_iterations = run_request.num_iterations
        self._iteration = -1
        self._loader = copy(current_backend_impl().run_context.dataloader)
        self._batches = _batches(self._loader, run_request.dataloader.initial_state)

    def receive_output(self, iteration: int, name: str) -> Any:
        self._advance(iteration)
        return cstorch.to_numpy(self._outputs[name])

    def recv_output(self, iteration: int, name: str) -> Any:
        self._advance(iteration)
        return cstorch.to_numpy(ENGINE.call("get", resource=name)[1]["value"])

    def fetch_dataloader_state(self, step: int) -> list[Any]:
        self._advance(step - 1)
        self._loader._configure_worker_state(step)  # noqa: SLF001 - its state wants it
        return [SimpleNamespace(user_state_dict=self._loader.dataloader.state_dict())]

    def move_to_ptr(self, tensor_name: str, tensor_id: int) -> None:
        ENGINE.call("keep", resource=tensor_name, id=tensor_id)

    def get_from_ptr(self, name: str, tensor_id: int, keep_in_repo: bool = False) -> Any:
        return cstorch.to_numpy(ENGINE.call("kept", id=tensor_id)[1]["value"])

    def delete_from_ptr(self, tensor_id: int) -> None:
        ENGINE.call("forget", id=tensor_id)

    def finalize(self, request: Any = None) -> Any:
        self._advance(self._num_iterations - 1)
        return SimpleNamespace(trace_events=[], perf=None)

    def _advance(self, iteration: int) -> None:
        # The front end may ask within a context of its device, which is the calling thread's own.
        self._stepping.submit(self._run_up_to, iteration).result()

    def _run_up_to(self, iteration: int) -> None:
        while self._iteration < iteration:
            _, self._outputs = ENGINE.call("step", self._inputs(next(self._batches)))
            self._iteration += 1

    def _inputs(self, batch: Any) -> dict[str, torch.Tensor]:
        """A batch's tensors by the names of the graph, in its formats."""
        tensors = visit_device_tensors(batch, "cpu", scope=["input"])
        found = {"_".join(scope): tensor for scope, tensor in tensors}
        wanted = self.compile_resp.inputs
        return {name: found[name].to(wire.dtype_named(dtype)) for name, dtype in wanted.items()}


def _tensor(array: Any) -> torch.Tensor:
    found: torch.Tensor = cstorch.from_numpy(array)
    return found


def _batches(loader: Any, initial_state: bytes) -> Iterator[Any]:
    """Batches of a loader made anew, epoch by epoch, from where a session's request says."""
    if initial_state:
        state, options = fw_user_deserialize(initial_state, name="DataLoader state", from_usr=False)
        made = loader.dataloader
        made.load_state_dict(made.deaggregate_state_dict(state, **options), **options)
    for _ in itertools.count():
        yield from loader


class NoTelemetry:
    """Takes what would be told to a cluster."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def push(self, *_: Any, **__: Any) -> None: ...


def main() -> None:
    """Put the engine in the machine's place, then run the script as Python would."""
    ltc_backend.ApplianceMode = Machine
    ltc_backend.ClusterManager.start_workflow = lambda *_, **__: True
    cluster_client.TelemetryClient = NoTelemetry
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if script == "cszoo":
        del sys.path[0]
        runpy.run_module(ZOO, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(script).resolve().parent)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
