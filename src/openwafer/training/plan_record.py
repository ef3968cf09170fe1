"""What the planner decided and predicted, as plan.json of a run folder keeps it."""

from dataclasses import dataclass
from enum import StrEnum

FORMAT = "openwafer-plan"
VERSION = 3


class Mode(StrEnum):
    """Whether the whole model stays on the device or streams through it."""

    RESIDENT = "resident"
    STREAMED = "streamed"


class Home(StrEnum):
    """Where bytes of a layer live: on the device, or in a tier of the parameter store."""

    DEVICE = "device"
    DRAM = "dram"
    DISK = "disk"


class Activations(StrEnum):
    """What becomes of a layer's activations between forward and backward."""

    KEEP = "keep"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


class Limit(StrEnum):
    """The part of the machine that a step keeps busy longest."""

    COMPUTE = "compute"
    UPDATE = "update"
    LINK = "link"
    DISK = "disk"


@dataclass(frozen=True)
class PlannedLayer:
    """One streamed layer: its size, and where its parts and activations live."""

    name: str
    parameters: int
    weights_bytes: int
    states_bytes: int
    weights_tier: Home
    states_tier: Home
    gradients_tier: Home
    activations: Activations
    activation_bytes: int


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one step moves, by way."""

    fetch: int
    push: int
    disk_read: int
    disk_write: int


@dataclass(frozen=True)
class ExpertUse:
    """Experts that stream one by one, of all layers, and those that a step was seen to use.

    `layers` have them. `used_bytes` and `weights_bytes` are of the weights of `used` and of all
    `experts`.
    """

    layers: int
    experts: int
    used: int
    weights_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class PlanRecord:
    """The plan of a run. Predictions that were not made, and limits not probed, are None.

    `step_bytes` are those of a usual step. Where updates are made before it is known that they are
    right, a step whose updates are undone moves `undone_step_bytes`, and one that keeps its
    gradients and waits `kept_step_bytes`; elsewhere there are no such steps. `step_flops` are those
    of matrix products, convolutions and attentions, recomputed ones included. `experts` is None
    where none stream one by one.
    """

    mode: Mode
    device: str
    device_budget_bytes: int
    predicted_peak_bytes: int
    predicted_host_bytes: int | None
    step_flops: int
    predicted_step_seconds: float | None
    step_limit: Limit | None
    parameters: int
    layers: tuple[PlannedLayer, ...]
    step_bytes: StepBytes
    disk_limit_bytes_per_second: float | None
    undone_step_bytes: StepBytes | None = None
    kept_step_bytes: StepBytes | None = None
    experts: ExpertUse | None = None
