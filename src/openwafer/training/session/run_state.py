"""What a commit or a checkpoint keeps beside the arrays, so that a run goes on bit for bit.

There is no generator's state in it: seeds are functions of the step (see ``seeding``), and the
order of the data is one too.
"""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import Count, JsonMistake, convert
from openwafer.training.store.layout import dtype_name, dtype_named
from openwafer.training.store.parts import Json
from openwafer.training.stream.link.updates import UpdateCounts

VERSION = 5
# Without what the last steps were undone for, the noise of gradients, and the stores of systems.
FIRST_READ_VERSION = 2
OWNER_VERSION: Literal[1] = 1


@dataclass(frozen=True)
class StoreSet:
    """Stores of several systems that commit as one.

    Attributes:
        name: of no others.
        size: how many there are.
        dealing: digest of which of them has which arrays.
    """

    name: str
    size: Count
    dealing: str


@dataclass(frozen=True)
class RunState:
    """A place in a run, between two steps.

    Attributes:
        steps_done: training steps behind it; the number of the next step.
        counts: of the updates applied.
        loss_scale: state of the loss scaler; empty without one.
        data: fingerprint of the batches and their order.
        seed: of the run.
        buffers: values of the model's buffers that its forwards have changed.
        undone: of the last steps, whether updates made at once were undone (see ``speculation``).
        stores: those of which a commit is one's; ``None`` where it has all, and in checkpoints.
        methods: state of the run's methods by the name that each has for it.
    """

    steps_done: Count
    counts: UpdateCounts
    loss_scale: Mapping[str, float]
    data: str
    seed: int
    buffers: Mapping[str, "BufferState"]
    undone: tuple[bool, ...] = ()
    stores: StoreSet | None = None
    methods: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> Mapping[str, Json]:
        """As the store keeps it: what is a method's stands beside the rest."""
        own = asdict(self)
        methods = own.pop("methods")
        return {**methods, "version": VERSION, **own}


@dataclass(frozen=True)
class OwnerState:
    """What a commit of a system that does not lead keeps beside its records.

    Attributes:
        version: of what is written here.
        steps_done: training steps behind it.
        stores: those that commit as one with this.
        counts: of the updates of its parameters.
    """

    version: Literal[1]
    steps_done: Count
    stores: StoreSet
    counts: UpdateCounts


@dataclass(frozen=True)
class BufferState:
    """A buffer's value; ``data`` is its bytes in base64."""

    dtype: str
    shape: tuple[Count, ...]
    data: str

    def to_tensor(self) -> torch.Tensor:
        """The value, in host memory."""
        data = bytearray(base64.b64decode(self.data))
        flat = torch.frombuffer(data, dtype=dtype_named(self.dtype))
        return flat.reshape(self.shape)


def parse_run_state(state: Mapping[str, object]) -> RunState:
    """Read back what :meth:`RunState.to_json` gave.

    Raises:
        OpenwaferError: ``run-state`` for another version, missing keys or other types.
    """
    try:
        if state.get("version") not in range(FIRST_READ_VERSION, VERSION + 1):
            raise JsonMistake(
                f"expected version {FIRST_READ_VERSION} to {VERSION}, found {state.get('version')}"
            )
        known = {"version", *(own.name for own in fields(RunState))}
        methods = {name: value for name, value in state.items() if name not in known}
        return convert(RunState, {**state, "methods": methods})
    except JsonMistake as cause:
        raise _not_written_here("the run", cause) from cause


def counts_of_owner(folder: Path, state: Mapping[str, object]) -> UpdateCounts:
    """The counts in the state of a store that the first system does not have.

    Raises:
        OpenwaferError: ``run-state``.
    """
    try:
        return convert(OwnerState, dict(state)).counts
    except JsonMistake as cause:
        raise _not_written_here(str(folder), cause) from cause


def _not_written_here(what: str, cause: JsonMistake) -> OpenwaferError:
    return error(
        "run-state",
        f"the saved state of {what} is not what this program writes: {cause}",
        help="resume with the release of openwafer that wrote it, or from a checkpoint",
    )


class BufferWatch:
    """Finds the buffers of a model that its forwards change, such as running statistics."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._first = {name: _mark(buffer) for name, buffer in model.named_buffers()}

    def changed(self) -> dict[str, BufferState]:
        """Values of the buffers that are not what they were at first."""
        return {
            name: _state_of(buffer)
            for name, buffer in self._model.named_buffers()
            if self._first.get(name) != _mark(buffer)
        }

    def restore(self, buffers: Mapping[str, BufferState]) -> None:
        """Give buffers the values of an earlier :meth:`changed`."""
        present = dict(self._model.named_buffers())
        with torch.no_grad():
            for name, state in buffers.items():
                present[name].resize_(state.shape).copy_(state.to_tensor())


def _mark(buffer: torch.Tensor) -> tuple[int, int]:
    # The version counts the writes in place.
    return id(buffer), buffer._version


def _state_of(buffer: torch.Tensor) -> BufferState:
    on_host = buffer.detach().cpu().contiguous()
    data = on_host.reshape(-1).view(torch.uint8).numpy().tobytes()
    return BufferState(
        dtype_name(buffer.dtype), tuple(buffer.shape), base64.b64encode(data).decode()
    )
