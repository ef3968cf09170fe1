"""What sparse weights take, measured: in memory, in files, on the link, and to and from the disk.

The model is nothing but square matrices, so nothing is left out. A sparse run is to take the share
of a dense one that it keeps, and an index as often as the dense one moves weights: the lesser of a
bit for each weight, and a byte for each kept one and for each 255 of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.sparsity.masks.one_shot import random_mask
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.store.checkpoint import save_checkpoint
from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.parameter_store import ParameterStore, StoreOptions
from openwafer.training.store.transfers import DiskTransfer
from openwafer.training.stream.plan.placement import StoreTier, update_bytes
from tests.tables import case
from tests.training.stream.both_loops import STREAMED, Run, StreamedRun, on_tier, plan

SIZE, NUM_LAYERS, NUM_STEPS = 768, 6, 2
ELEMENTS = NUM_LAYERS * SIZE**2
SPARSITIES = (0.75, 0.9, 0.95)


class Stack(nn.Module):
    """Square matrices, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(NUM_LAYERS))

    def forward(self, rows: Tensor) -> Tensor:
        for layer in self.layers:
            rows = rows + layer(rows)
        return rows


def build(sparsity: float) -> nn.Module:
    torch.manual_seed(0)
    model = Stack()
    if sparsity == 0:
        return model
    kept = {name: round((1 - sparsity) * SIZE**2) for name, _ in model.named_parameters()}
    pack_linears(
        model, kept, lambda name, weight: random_mask(tuple(weight.shape), sparsity, name, 1)
    )
    return model


def optimize(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)


def draw(generator: torch.Generator) -> Tensor:
    return torch.randn(64, SIZE, generator=generator)


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    loss: Tensor = model(rows).square().mean()
    return loss


@dataclass(frozen=True)
class Moved:
    """Bytes of some steps: by the run's counters, and those that the kernel read and wrote."""

    fetched: int
    pushed: int
    read: int
    written: int
    read_by_kernel: int
    written_by_kernel: int


def moved_so_far(streamed: StreamedRun) -> Moved:
    # What is read ahead is counted by one before the other.
    streamed.execution.store.drain()
    link, disk = streamed.execution.traffic, streamed.execution.store.traffic
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    kernel = {name: int(value) for name, value in lines}
    of_disk = disk.read_bytes, disk.written_bytes
    return Moved(link.fetch_bytes, link.push_bytes, *of_disk, kernel["rchar"], kernel["wchar"])


def train(streamed: StreamedRun, first: int) -> None:
    for step in range(first, first + NUM_STEPS):
        streamed.step(step)
        streamed.execution.flush()
        streamed.execution.store.commit(step, {})


@dataclass(frozen=True)
class Measured:
    """What a run from disk takes and moves, in bytes for each weight of the dense model.

    `weights_read` and `states_read` are what reading those of all layers once takes.
    """

    density: float
    memory: float
    files: float
    checkpoint: float
    weights_read: float
    states_read: float
    fetched: float
    pushed: float
    read: float
    written: float
    read_by_kernel: float
    written_by_kernel: float


def lent_bytes(store: ParameterStore) -> int:
    """Memory of all records, one after the other."""
    total = 0
    for name in store.layouts:
        with store.lent(name, KEPT_PARTS, read_only=True) as loan:
            total += sum(len(loan.part_bytes_view(part)) for part in KEPT_PARTS)
    return total


def bytes_in(folder: Path) -> int:
    """Of the blocks of its files."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


def read_once(transfers: Sequence[DiskTransfer], part: Part) -> float:
    """Bytes of a part of each record, for each weight of the dense model."""
    found = [t.num_bytes for t in transfers if t.kind == "read" and t.part is part]
    return sum(found) / len(found) * NUM_LAYERS / ELEMENTS


def measure(sparsity: float, folder: Path) -> Measured:
    transfers: list[DiskTransfer] = []
    run = Run(partial(build, sparsity), optimize, draw, loss_of, num_steps=NUM_STEPS)
    options = replace(STREAMED, min_layer_bytes=1, store=StoreOptions(on_transfer=transfers.append))
    planned = plan(run, options, folder=folder / "store")
    largest = max(map(update_bytes, planned.plan.layouts.values()))
    streamed = StreamedRun(run, on_tier(planned, StoreTier.DISK, largest), folder / "store")
    train(streamed, 0)
    before = moved_so_far(streamed)
    train(streamed, NUM_STEPS)
    after = moved_so_far(streamed)
    store = streamed.execution.store
    assert store.dram_bytes == 0
    of_step = {k: (v - vars(before)[k]) / NUM_STEPS / ELEMENTS for k, v in vars(after).items()}
    checkpoint = save_checkpoint(store, folder, 1, {})
    held = lent_bytes(store), bytes_in(folder / "store"), bytes_in(checkpoint)
    streamed.close()
    read = (read_once(transfers, part) for part in KEPT_PARTS)
    return Measured(1 - sparsity, *(number / ELEMENTS for number in held), *read, **of_step)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure(0, tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module", params=[case(s, by_default=s == SPARSITIES[0]) for s in SPARSITIES])
def sparse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure(request.param, tmp_path_factory.mktemp("sparse"))


def share(of_dense: float, sparse: Measured, num_weights: float) -> object:
    """The kept share of what a dense run takes, of which weights are so many, and their indexes."""
    index = min(1 / 8, sparse.density + 1 / 255)
    return pytest.approx(of_dense * sparse.density + num_weights * index, rel=0.05)


def test_a_dense_weight_takes_12_bytes(dense: Measured) -> None:
    assert dense.memory == dense.written == dense.weights_read + dense.states_read == 12
    assert dense.files == pytest.approx(2 * 12, rel=0.01)
    assert dense.checkpoint == pytest.approx(12, rel=0.01)


def test_the_store_and_a_checkpoint_hold_kept_weights_and_their_states(
    dense: Measured, sparse: Measured
) -> None:
    assert sparse.memory == share(dense.memory, sparse, 1)
    assert sparse.checkpoint == share(dense.checkpoint, sparse, 1)
    # A step is written beside the one before it.
    assert sparse.files == share(dense.files, sparse, 2)


def test_kept_weights_are_streamed_and_their_gradients_come_back(
    dense: Measured, sparse: Measured
) -> None:
    assert sparse.fetched == share(dense.fetched, sparse, dense.fetched / 4)
    assert sparse.pushed == share(dense.pushed, sparse, 0)


def test_kept_weights_and_their_states_are_read_and_written(
    dense: Measured, sparse: Measured
) -> None:
    assert sparse.weights_read == share(dense.weights_read, sparse, 1)
    assert sparse.states_read == share(dense.states_read, sparse, 0)
    # How many weights the ring still has where passes turn differs from step to step.
    most = 2 * sparse.weights_read + sparse.states_read
    assert most - sparse.weights_read < sparse.read <= most
    assert sparse.written == share(dense.written, sparse, 1)


def test_the_kernel_reads_and_writes_what_the_run_counts(sparse: Measured) -> None:
    assert sparse.read_by_kernel == pytest.approx(sparse.read, rel=0.02)
    assert sparse.written_by_kernel == pytest.approx(sparse.written, rel=0.02)
