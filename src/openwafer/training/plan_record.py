"""What the planner decided and predicted, as plan.json of a run folder keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

from openwafer.figures import Origin

FORMAT = "openwafer-plan"
VERSION = 3


class Mode(StrEnum):
    """Whether a model stays on the device, streams through it, or has its stages on several."""

    RESIDENT = "resident"
    STREAMED = "streamed"
    PIPELINED = "pipelined"


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


class ExpertsWay(StrEnum):
    """How rows and experts meet on several systems: as the plan finds it, or in one way."""

    AUTO = "auto"
    FETCH = "fetch"
    OWNERS = "owners"


class Limit(StrEnum):
    """The part of the machine that a step keeps busy longest."""

    COMPUTE = "compute"
    UPDATE = "update"
    LINK = "link"
    DISK = "disk"
    NETWORK = "network"


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
class ExpertTraffic:
    """How rows and experts meet on several systems, and what a system receives for it in a step.

    The weights of experts are fetched and their gradients added up, which is `fetch_bytes`, or rows
    go to the owners of experts and come back, which is `owners_bytes` where tokens are shared out
    evenly. `reason` says why owners cannot; None where they can.
    """

    way: ExpertsWay
    fetch_bytes: int
    owners_bytes: int | None
    reason: str | None = None

    @property
    def row_bytes(self) -> int:
        """Of rows, and norms of what they are multiplied by; none where weights are fetched."""
        return (self.owners_bytes or 0) if self.way is ExpertsWay.OWNERS else 0


@dataclass(frozen=True)
class SparseWeight:
    """A sparse weight: its shape, and the most elements of it that are ever kept.

    Products with it, on the CPU in fp32, skip zeros from `skips_from_tokens` tokens on, or never.
    That was measured to be `skipping_gain` times as fast as dense products, if it was measured.
    """

    name: str
    rows: int
    columns: int
    capacity: int
    skips_from_tokens: int | None = None
    skipping_gain: float | None = None

    @property
    def elements(self) -> int:
        """Of the dense weight."""
        return self.rows * self.columns


@dataclass(frozen=True)
class SparseUse:
    """What sparse weights take, beside the same plan with dense ones.

    `parameters` are those of the dense model. `values_bytes`, `states_bytes` and `pattern_bytes`
    are what the store keeps of the sparse weights; what it would keep of dense ones is
    `dense_values_bytes` and `dense_states_bytes`. A usual step would move `dense_step_bytes`.
    """

    weights: tuple[SparseWeight, ...]
    parameters: int
    values_bytes: int
    states_bytes: int
    pattern_bytes: int
    dense_values_bytes: int
    dense_states_bytes: int
    dense_step_bytes: StepBytes

    @property
    def elements(self) -> int:
        """Of all sparse weights, were they dense."""
        return sum(weight.elements for weight in self.weights)

    @property
    def capacity(self) -> int:
        """Most elements of them that are kept."""
        return sum(weight.capacity for weight in self.weights)

    @property
    def store_bytes(self) -> int:
        """What the store keeps of sparse weights."""
        return self.values_bytes + self.states_bytes + self.pattern_bytes

    @property
    def dense_store_bytes(self) -> int:
        """What it would keep of them, were they dense."""
        return self.dense_values_bytes + self.dense_states_bytes


@dataclass(frozen=True)
class PlannedStage:
    """A stage: its layers from `first` to `last`, what it holds, and its share of a step's work.

    `weights_bytes` are those it borrows, too. `activation_bytes` are of all micro-batches that are
    in it at once, `passing_bytes` of the tensors that come from its neighbours.
    """

    first: str
    last: str
    weights_bytes: int
    gradients_bytes: int
    states_bytes: int
    activation_bytes: int
    passing_bytes: int
    share: float

    @property
    def total_bytes(self) -> int:
        """All that it holds."""
        kept = self.weights_bytes + self.gradients_bytes + self.states_bytes
        return kept + self.activation_bytes + self.passing_bytes


@dataclass(frozen=True)
class PipelineUse:
    """The stages through which the micro-batches of a step go.

    `replicas` have all stages and a block of the micro-batches each. `stages` are those of the
    first replica, which has the optimizer states, and `others` those of the one that has most of
    the rest; empty where there is one replica.
    """

    stages: tuple[PlannedStage, ...]
    micro_batches: int
    replicas: int = 1
    others: tuple[PlannedStage, ...] = ()

    @property
    def block(self) -> int:
        """Micro-batches of the replica that has most."""
        return ceil(self.micro_batches / self.replicas)

    @property
    def bubble(self) -> float:
        """Share of a step in which a stage waits, if all take as long."""
        others = len(self.stages) - 1
        return others / (self.block + others)


@dataclass(frozen=True)
class ModeChoice:
    """Why several systems stream, or have stages, where the config left it to the plan.

    `streamed_seconds` and `pipelined_seconds` are what a step was predicted to take in either way,
    None where it was not; `reason` says in words what was compared, or what could not be.
    """

    streamed_seconds: float | None
    pipelined_seconds: float | None
    reason: str


@dataclass(frozen=True)
class StoreUse:
    """Where the parameter store of several systems is.

    Attributes:
        is_shared: whether each of them has a share of the records, and not the first one all.
        reason: why.
    """

    is_shared: bool
    reason: str


@dataclass(frozen=True)
class PlanRecord:
    """The plan of a run. Predictions that were not made, and limits not probed, are None.

    `step_bytes` are those of a usual step. Where updates are made before it is known that they are
    right, a step whose updates are undone moves `undone_step_bytes`, and one that keeps its
    gradients and waits `kept_step_bytes`; elsewhere there are no such steps. `step_flops` are those
    of matrix products, convolutions and attentions, recomputed ones included. `experts` is None
    where none stream one by one, `sparse` where no weight is sparse. Of several `systems`, figures
    are those of the first, and `stores` says which have the parameter store. Where each has a
    stage, `pipeline` says which; the peak is that of the largest then, and all else is of all of
    them together. `choice` is None where the config says how systems share the work, and
    `expert_traffic` where their experts are not fused, or there is one system. `origins` says where
    each predicted or measured figure comes from, by the name of its field.
    `measured_step_seconds` are what the first steps of the run took, None before they are over.
    `whole_layer_calls` are those of layers in the forwards of all micro-batches, where a model may
    leave out layers or tokens: the plan is that of a step that leaves out nothing. None of others.
    `plain_loop_bytes` are what a device would hold of a plain loop: the peak of the resident plan
    and the optimizer states; None where nobody counted them.
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
    sparse: SparseUse | None = None
    systems: int = 1
    pipeline: PipelineUse | None = None
    stores: StoreUse | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)
    choice: ModeChoice | None = None
    expert_traffic: ExpertTraffic | None = None
    measured_step_seconds: float | None = None
    whole_layer_calls: int | None = None
    plain_loop_bytes: int | None = None
