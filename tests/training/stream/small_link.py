"""A store link over three matrices of 16 KiB, for tests that walk a pass by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from openwafer.training.store.layout import Part, RecordLayout, slice_name
from openwafer.training.store.parameter_store import ParameterStore, StoreOptions, Tier
from openwafer.training.store.transfers import DiskTransfer
from openwafer.training.stream.device.device import CpuDevice, Recorder
from openwafer.training.stream.layers import partition
from openwafer.training.stream.link.store_link import StoreLink
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.records import lay_out_records, write_weights
from openwafer.training.stream.schedule import Action, Kind, UpdateTiming

NUM_RECORDS = 3
WEIGHT_BYTES = 64 * 64 * 4
# Nothing here is to stall, however slow the disk is.
PATIENT = StoreOptions(stall_seconds=120)


def three_matrices() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(NUM_RECORDS)))


class Stacked(nn.Module):
    """The same in one weight."""

    def __init__(self) -> None:
        super().__init__()
        weights = [weight.detach() for weight in three_matrices().parameters()]
        self.weight = nn.Parameter(torch.stack(weights))


def fetches(order: Sequence[int]) -> list[Action]:
    """A pass that fetches those records, one after the other."""
    return [Action(Kind.FETCH, str(index), WEIGHT_BYTES) for index in order]


def interleaved(order: Sequence[int]) -> list[Action]:
    """A pass that fetches those records and pushes the gradients of each."""
    pushes = [Action(Kind.PUSH, fetch.target, WEIGHT_BYTES) for fetch in fetches(order)]
    return [action for pair in zip(fetches(order), pushes, strict=True) for action in pair]


@dataclass
class SmallLink:
    """Records "0", "1" and "2" on disk, each with a matrix and the momentum of SGD.

    Attributes:
        is_sliced: whether the matrices are slices of one weight instead.
    """

    folder: Path
    timing: UpdateTiming = UpdateTiming.ON_FETCH
    ring_records: float = NUM_RECORDS
    options: StoreOptions = PATIENT
    device: CpuDevice = field(default_factory=CpuDevice)
    reads: list[str] = field(default_factory=list)
    is_sliced: bool = False

    def __post_init__(self) -> None:
        self.weights = [weight.detach().clone() for weight in three_matrices().parameters()]
        self.model = nn.Sequential(Stacked()) if self.is_sliced else three_matrices()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, momentum=0.5, fused=True)
        self.updater = Updater(optimizer, self.model)
        self._create()
        self.store = ParameterStore.open(
            self.folder, ring_bytes=self.ring_bytes, options=self.options
        )
        recorder = Recorder(self.device)
        self.link = StoreLink(self.store, self.updater, self.device, self.timing, recorder)

    @property
    def layouts(self) -> dict[str, RecordLayout]:
        return lay_out_records(
            partition(
                self.model,
                min_layer_bytes=0,
                sliced={"0.weight": NUM_RECORDS} if self.is_sliced else {},
            ),
            parameters=dict(self.model.named_parameters()),
            state_arrays=self.updater.state_arrays,
            keeps_gradients=True,
        )

    @property
    def ring_bytes(self) -> int:
        """Bytes of that many whole records."""
        record = next(iter(self.layouts.values()))
        return int(self.ring_records * sum(record.part_bytes(part) for part in Part))

    def _create(self) -> None:
        layouts = self.layouts
        tiers = {(name, part): Tier.DISK for name in layouts for part in Part}
        with ParameterStore.create(
            layouts.values(), tiers, folder=self.folder, ring_bytes=1 << 20
        ) as store:
            write_weights(store, dict(self.model.named_parameters()))
            store.commit(0, {})

    def record(self, index: int) -> str:
        return slice_name("0.weight", index) if self.is_sliced else str(index)

    def weight(self, index: int) -> str:
        return self.record(index) if self.is_sliced else f"{index}.weight"

    def fetch(self, index: int) -> Tensor:
        """Bring a record to the device; its weights there."""
        slot = torch.empty(WEIGHT_BYTES, dtype=torch.uint8)
        self.link.fetch(self.record(index), slot, keeps_loan=False)
        self.link.complete(self.record(index))
        return slot.view(torch.float32).view(64, 64)

    def lend(self, index: int) -> Tensor:
        """Bring a record to the device without a slot; its weights in the store's memory."""
        self.link.fetch(self.record(index), None, keeps_loan=False)
        lent = self.link.complete(self.record(index))
        assert lent is not None
        return lent.view(torch.float32).view(64, 64)

    def push(self, index: int, value: float) -> None:
        """Push a gradient that has the same value everywhere."""
        self.link.push(self.record(index), [{self.weight(index): torch.full((64, 64), value)}])

    def push_zeros(self, index: int) -> None:
        """Push the gradient of a slice that got none."""
        self.link.push_zeros([self.record(index)])

    def complete_step(self, coefficient: float = 1.0) -> None:
        """Let what is kept be of a whole step."""
        self.link.kept.complete_by(self.updater.this_step(coefficient))

    def update(self) -> None:
        """Complete a step and apply it."""
        self.complete_step()
        self.link.flush()

    def stored(self, index: int) -> Tensor:
        with self.link.lent(self.record(index), Part.WEIGHTS) as loan:
            return loan.tensor(self.weight(index), Part.WEIGHTS).clone()

    def kept(self, index: int) -> Tensor:
        """The gradient that is kept for a record."""
        with self.link.lent(self.record(index), Part.GRADIENTS) as loan:
            return loan.tensor(self.weight(index), Part.GRADIENTS).clone()

    def close(self) -> None:
        self.link.close()
        self.store.close()


def reads_of(transfers: Sequence[DiskTransfer]) -> list[str]:
    """Records in the order in which they were read."""
    return [transfer.record for transfer in transfers if transfer.kind == "read"]
