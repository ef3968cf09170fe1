"""Where a script computes: its backend, of which a process has one."""

from collections.abc import Collection
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import ref

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.config import PathLike, Size
from openwafer.diagnostics import did_you_mean, error
from openwafer.training.frontends.scripts.closures import StepClosures
from openwafer.training.frontends.scripts.compiler import CompilerSettings
from openwafer.training.frontends.scripts.program import Room, ScriptProgram, kind_of
from openwafer.training.store.update_rules.optimizers import parameters_of

if TYPE_CHECKING:
    from openwafer.training.frontends.present.executor import DataExecutor
    from openwafer.training.frontends.present.sparse import SparsityAlgorithm

__all__ = ["Backend", "BackendType", "backend", "current_backend", "current_torch_device", "use_cs"]

_DEVICES: Final = {"CPU": "cpu", "GPU": "cuda", "CSX": "auto"}
# Where a machine is, how it cuts a step, and when it traces.
_UNREAD: Final = frozenset(
    (
        "cluster_config",
        "compile_dir",
        "dist_backend",
        "drop_data",
        "init_method",
        "main_process_id",
        "max_act_per_csx",
        "max_wgt_servers",
        "micro_batch_size",
        "num_workers_per_csx",
        "retrace_every_iteration",
        "sync_batchnorm",
        "use_cs_grad_accum",
    )
)
_REFUSED: Final = {
    "compile_only": "nothing is compiled before the first step",
    "validate_only": "nothing is traced before the first step",
    "enable_distributed": "a backend computes in one process",
    "mixed_precision": "formats are chosen around the forward, by cstorch.amp.autocast()",
}


class BackendType(Enum):
    """What a script names when it asks for a backend."""

    CPU = "CPU"
    GPU = "GPU"
    CSX = "CSX"

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self is BackendType.CPU

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self is BackendType.GPU

    @property
    def is_csx(self) -> bool:
        """Whether the script means the vendor's machine, for which this one stands in."""
        return self is BackendType.CSX


class BackendDevice:
    """The device of a backend, as scripts enter it to construct a model.

    Weights are made in host memory, as everywhere; a step fetches them.

    Attributes:
        config: see :class:`CompilerSettings`.
    """

    def __init__(self, program: ScriptProgram) -> None:
        self._program = program
        self.config = CompilerSettings()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def __str__(self) -> str:
        return str(self.torch_device)

    @property
    def torch_device(self) -> torch.device:
        """Where a step computes."""
        return self._program.device

    @property
    def type(self) -> str:
        """The kind of that device."""
        return self.torch_device.type


class Backend:
    """Where the steps of a script compute; made by :func:`backend`.

    Attributes:
        backend_type: what the script asked for.
        program: the model that was compiled, and the memory that it may use.
        device: see :class:`BackendDevice`.
        artifact_dir: a folder that the script may write to.
        cluster_config: what the script said of a cluster.
        closures: of the step under way.
        executor: the one that is iterated over.
        sparsities: those that the script has made.
        max_checkpoints: how many of those that ``cstorch.save`` has written are kept; None for all.
        checkpoints: those that it has written, and are there.
    """

    is_e2e_execution: Final = True

    def __init__(self, backend_type: BackendType, room: Room) -> None:
        self.backend_type = backend_type
        self.program = ScriptProgram(room, _DEVICES[backend_type.name])
        self.device = BackendDevice(self.program)
        self.artifact_dir = Path()
        self.cluster_config: object = None
        self.closures = StepClosures()
        self.executor: DataExecutor | None = None
        self.sparsities: list[SparsityAlgorithm] = []
        self.max_checkpoints: int | None = None
        self.checkpoints: list[Path] = []
        self._optimizers: list[ref[Optimizer]] = []

    @property
    def is_cpu(self) -> bool:
        """Whether the script asked for the CPU."""
        return self.backend_type.is_cpu

    @property
    def is_gpu(self) -> bool:
        """Whether the script asked for a GPU."""
        return self.backend_type.is_gpu

    @property
    def is_csx(self) -> bool:
        """Whether the script asked for the vendor's machine."""
        return self.backend_type.is_csx

    @property
    def torch_device(self) -> torch.device:
        """Where a step computes."""
        return self.program.device

    def take_model(self, model: nn.Module) -> nn.Module:
        """Let the executors from now on stream a model.

        Raises:
            OpenwaferError: ``present-model`` for what is no module, ``present-executor-open``.
        """
        if not isinstance(model, nn.Module):
            raise error(
                "present-model",
                f"cstorch.compile takes a torch.nn.Module, and got {kind_of(model)}",
                help="write compiled_model = cstorch.compile(model, backend)",
            )
        if self.executor is not None and model is not self.program.model:
            raise error(
                "present-executor-open",
                f"cstorch.compile is given another {type(model).__name__} while an executor is "
                "iterated over",
                help="compile a model before the loop over the executor that trains it",
            )
        self.program.model = model
        if not hasattr(model, "device"):  # which scripts ask a compiled model for
            model.device = self.torch_device  # type: ignore[assignment]
        return model

    def take_optimizer(self, optimizer: Optimizer) -> None:
        """Know of an optimizer as long as the script holds it."""
        self._optimizers.append(ref(optimizer))

    def optimizers_of(self, parameters: Collection[int]) -> list[Optimizer]:
        """Those over some of the parameters, given by their `id`."""
        known = [optimizer for made in self._optimizers if (optimizer := made()) is not None]
        return [one for one in known if is_over(one, parameters)]


def is_over(optimizer: Optimizer, parameters: Collection[int]) -> bool:
    """Whether an optimizer has one of the parameters, given by their `id`."""
    return any(id(parameter) in parameters for parameter in parameters_of(optimizer))


class _Process:
    backend: Backend | None = None


def backend(
    backend_type: str | BackendType | None = None,
    artifact_dir: PathLike | None = None,
    *,
    device_memory: Size | None = None,
    folder: PathLike | None = None,
    max_checkpoints: int | None = None,
    **vendor: Any,
) -> Backend | None:
    """Make the backend of this process, change what it was told, or return it.

    Args:
        backend_type: ``"CPU"``, ``"GPU"``, or ``"CSX"``, for which this machine stands in with its
            GPU, or its CPU where it has none. Without it, the backend that was made.
        artifact_dir: a folder that the script may write to.
        device_memory, folder: see :class:`Room`.
        max_checkpoints: see :class:`Backend`.
        vendor: what a machine, its compiler and its cluster are told means nothing here.

    Raises:
        OpenwaferError: ``argument-bytes``; ``present-backend`` for another type than was made, or
            one that is none; ``present-backend-option`` for what asks for something else, or keeps
            no checkpoint; ``present-executor-open``.
    """
    if backend_type is None:
        return _Process.backend
    known = _type_of(backend_type)
    _check_options(vendor)
    _check_number(max_checkpoints)
    made, room = _Process.backend, Room.of(device_memory, folder)
    if made is None:
        made = _Process.backend = Backend(known, room)
    else:
        _check_other(made, known)
        made.program.room = room
    made.cluster_config = vendor.get("cluster_config")
    made.max_checkpoints = max_checkpoints
    if artifact_dir is not None:
        made.artifact_dir = Path(artifact_dir)
    return made


def _type_of(asked: str | BackendType) -> BackendType:
    if isinstance(asked, BackendType):
        return asked
    name = str(asked).upper()
    name = "CSX" if name == "WSE" else name
    if name not in BackendType.__members__:
        raise error(
            "present-backend",
            f"cstorch.backend knows no type {asked!r}",
            help=did_you_mean(name, _DEVICES),
        )
    return BackendType[name]


def _check_options(vendor: dict[str, Any]) -> None:
    for name, value in vendor.items():
        if name in _UNREAD or (name in _REFUSED and not value):
            continue
        raise error(
            "present-backend-option",
            f"cstorch.backend is asked for {name}={value!r}",
            notes=(_REFUSED[name],) if name in _REFUSED else (),
            help="leave it out, or set it to False"
            if name in _REFUSED
            else did_you_mean(name, (*_UNREAD, "device_memory", "folder")),
        )


def _check_number(max_checkpoints: int | None) -> None:
    if max_checkpoints is not None and max_checkpoints < 1:
        raise error(
            "present-backend-option",
            f"cstorch.backend is asked for max_checkpoints={max_checkpoints!r}, which would delete "
            "each checkpoint as it is written",
            help="give a number from 1 on, or None to keep all",
        )


def _check_other(before: Backend, asked: BackendType) -> None:
    if before.backend_type is not asked:
        raise error(
            "present-backend",
            f"this process has a backend of {before.backend_type.name}, and is asked for one of "
            f"{asked.name}",
            help="use one type in a process",
        )
    if before.executor is not None:
        raise error(
            "present-executor-open",
            "cstorch.backend changes the backend while an executor of it is iterated over",
            help="do so before the loop",
        )


def end() -> None:
    """Forget the backend of this process."""
    _Process.backend = None


def current_backend(raise_exception: bool = True, raise_warning: bool = True) -> Backend | None:
    """The backend of this process.

    Raises:
        OpenwaferError: ``present-no-backend``, unless `raise_exception` is False.
    """
    return current("cstorch.current_backend") if raise_exception else _Process.backend


def running() -> Backend | None:
    """The backend of this process; None where none was made."""
    return _Process.backend


def current(caller: str) -> Backend:
    """The backend of this process.

    Args:
        caller: what asks for it, as the script wrote it.

    Raises:
        OpenwaferError: ``present-no-backend``.
    """
    if _Process.backend is None:
        raise error(
            "present-no-backend",
            f"{caller} is called, and there is no backend",
            help='write backend = cstorch.backend("CPU"), or "GPU", before it',
        )
    return _Process.backend


def current_torch_device() -> torch.device:
    """Where a step computes; the CPU where no backend was made."""
    return torch.device("cpu") if _Process.backend is None else _Process.backend.torch_device


def use_cs() -> bool:
    """Whether the script asked for the vendor's machine."""
    return _Process.backend is not None and _Process.backend.is_csx
