"""How a model is to be streamed: what its user says, and what a plan is made from besides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import torch

import openwafer
from openwafer.config import Bytes, convert_fields
from openwafer.config.reading import require_positive
from openwafer.diagnostics import error
from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.plan_record import Activations, ExpertsWay, Mode, StoreUse
from openwafer.training.store.parameter_store import StoreOptions
from openwafer.training.stream.device.cuda import CudaDevice
from openwafer.training.stream.device.device import CpuDevice, Device
from openwafer.training.stream.device.layer_backend import TORCH, LayerBackend
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import HostMemory, StoreSystems
from openwafer.training.stream.schedule import UpdateTiming

FABRIC: Final = "fabric"
"""Device that is a simulated wafer."""


@dataclass(frozen=True)
class FabricOptions:
    """The rectangle of PEs that computes a model, and how weights come to it.

    Attributes:
        rows: of PEs; features are dealt to them.
        columns: of PEs; the tokens of a micro-batch lie in them, so they divide those.
        generation: wse2 or wse3.
        precision: of products with weights: f32, or f16-f32, which rounds what they take to f16 and
            has sums of f32. All else is f32.
        ports: by which weights stream in; ``null`` takes the fewest.
        host: patterns of layers' names that torch computes on the host.
        account: book for each pass how long cores compute and wait; the simulator takes longer.
        transport: of what the host copies on and off: ideal, or edge, which has it pass the ports
            as weights do.
    """

    rows: int = 4
    columns: int = 4
    generation: Literal["wse2", "wse3"] = "wse3"
    precision: Literal["f32", "f16-f32"] = "f32"
    ports: int | None = None
    host: tuple[str, ...] = ()
    account: bool = False
    transport: Literal["ideal", "edge"] = "ideal"

    def __post_init__(self) -> None:
        convert_fields(self)
        require_positive(self, "rows", "columns", "ports")


@dataclass(frozen=True)
class StreamOptions:
    """How to stream; everything has a good default.

    Attributes:
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"fabric"``.
        tier: where the store may keep records.
        host_memory_bytes: host memory for the store; ``None`` is most of what is available.
        link_bytes_per_second: a slow link on the CPU device, for measurements.
        mode: forces resident or streamed.
        activations: forces the activation policy of layers by name.
        default_activations: forces the policy of the layers not named.
        prefetch_layers: how many layers ahead weights are fetched; ``None`` is as many as fit.
        most_layer_calls: of a forward, where the model's code decides how many there are; the plan
            has room for so many. ``None`` has room for those of the step that is planned.
        layers: layer patterns.
        min_layer_bytes: smaller layers outside module lists stay on the device.
        systems_timeout_seconds: after which a silent rank of a user's own loop counts as lost.
        averages_gradients: whether gradients of such a loop are the ranks' mean, not their sum.
        store_systems: which of the ranks have records in their stores.
        store: options of the store.
        backend: computes the layers, where that is not torch; it takes tensors in host memory.
        fabric: the rectangle of the device ``"fabric"``.
    """

    device: str = "auto"
    tier: StoreTier = StoreTier.AUTO
    host_memory_bytes: Bytes | None = None
    link_bytes_per_second: float | None = None
    mode: Mode | None = None
    activations: Mapping[str, Activations] = field(default_factory=dict)
    default_activations: Activations | None = None
    prefetch_layers: int | None = None
    most_layer_calls: int | None = None
    layers: tuple[str, ...] = ()
    min_layer_bytes: Bytes = 64 * 1024
    systems_timeout_seconds: float = 600.0
    averages_gradients: bool = False
    store_systems: StoreSystems = StoreSystems.FIRST
    store: StoreOptions = StoreOptions()  # noqa: RUF009 - frozen
    backend: LayerBackend = TORCH
    fabric: FabricOptions = FabricOptions()

    def __post_init__(self) -> None:
        convert_fields(self)
        require_positive(self, "most_layer_calls")


@dataclass(frozen=True)
class PlanInput:
    """What a plan is made from beside the model: its user's options, and what the caller knows.

    Attributes:
        options: what the user says.
        device_memory_bytes: the memory setting; ``None`` is no cap.
        keeps_gradients: whether updates wait for the whole step, as clipping by the global norm
            and loss scaling need.
        commits_steps: whether every step is made durable on a disk tier.
        may_speculate: whether updates that would wait for the whole step may be made as gradients
            arrive instead, where a disk tier can undo them; the caller runs a step again that
            turns out to want other updates. Asks for `keeps_gradients` and `commits_steps`.
        by_expert: whether the experts of one weight may stream one by one.
        experts: how the ranks of a run compute experts; one rank knows one way.
        systems: ranks that run a step together.
        store_reason: why those ranks have records that do.
        hosts: of these, where they are known; empty where all are on this one.
        network: how fast weights and gradients pass between ranks, where that is known.
        num_tokens: of a micro-batch, where they are known before one comes.
    """

    options: StreamOptions
    device_memory_bytes: int | None = None
    keeps_gradients: bool = False
    commits_steps: bool = False
    may_speculate: bool = False
    by_expert: bool = True
    experts: ExpertsWay = ExpertsWay.FETCH
    systems: int = 1
    store_reason: str = "the lines of a loop reach one store"
    hosts: tuple[HostMemory, ...] = ()
    network: NetworkRates | None = None
    num_tokens: int | None = None

    @property
    def has_kernels(self) -> bool:
        """Whether somebody else than torch computes layers."""
        return self.options.backend is not TORCH or self.options.device == FABRIC

    def make_device(self) -> Device:
        """The device that was chosen.

        Raises:
            OpenwaferError: ``device-unknown`` when there is no such name, ``device-missing`` when
                it is not there, ``systems-device``.
        """
        chosen, rate = self.options.device, self.options.link_bytes_per_second
        if chosen == FABRIC:
            backend: LayerBackend = openwafer.Fabric(self.options.fabric, self.num_tokens)
            return CpuDevice(self.device_memory_bytes, rate, backend)
        is_cuda = chosen == "auto" and torch.cuda.is_available()
        try:
            torch_device = torch.device(
                chosen if chosen != "auto" else "cuda" if is_cuda else "cpu"
            )
        except RuntimeError as cause:
            raise error(
                "device-unknown",
                f"torch knows no device {chosen!r}",
                help="write auto, cpu, cuda, cuda:1 or fabric",
            ) from cause
        if self.systems > 1 and torch_device.type != "cpu":
            raise error(
                "systems-device",
                f"{self.systems} systems train on the CPU, and the device is {torch_device}",
                help="set streaming.device to cpu, or train on one system",
            )
        if torch_device.type == "cpu":
            return CpuDevice(self.device_memory_bytes, rate, self.options.backend)
        if self.options.backend is not TORCH:
            raise error(
                "backend-device",
                f"the backend of StreamOptions takes tensors in host memory, and the device is "
                f"{torch_device}",
                help="set device to cpu, or leave the backend out",
            )
        if torch_device.type == "cuda" and (torch_device.index or 0) < torch.cuda.device_count():
            return CudaDevice(torch_device, self.device_memory_bytes)
        raise error(
            "device-missing",
            f"the device {chosen!r} is not here",
            notes=(f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices",),
            help="use device: cpu, or install a torch build for this accelerator",
        )

    @property
    def store_use(self) -> StoreUse | None:
        """Where the store of several systems is."""
        if self.systems == 1:
            return None
        return StoreUse(self.options.store_systems is StoreSystems.ALL, self.store_reason)

    @property
    def timing(self) -> UpdateTiming:
        """When records are updated."""
        return UpdateTiming.ON_FETCH if self.keeps_gradients else UpdateTiming.ON_PUSH
