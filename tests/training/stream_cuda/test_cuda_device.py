"""What holds on a GPU: copies and their order beside compute, memory, the bits of training."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models.reference_gpt import GptConfig
from openwafer.training.plan_record import Activations
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.device.cuda import RING, CudaDevice, PinnedRing, RingShape
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.execute.resident import DeviceResidentExecution
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.stream.axes import DEPTHS, HOST_BYTES, TIERS
from tests.training.stream.both_loops import (
    STREAMED,
    Parameters,
    Run,
    differing,
    on_tier,
    plan,
    train_streamed,
)
from tests.training.stream.small_gpt import build_gpt
from tests.training.stream_cuda.gpu_loop import gpu_run, loss_on_gpu, train_on_gpu
from tests.training.stream_cuda.one_store import OneStore
from tests.training.stream_cuda.test_device_resident import OPTIMIZERS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ON_GPU = replace(STREAMED, device="cuda")
WIDE = GptConfig(vocab_size=8192, context_length=512, hidden_size=1024, num_layers=12, num_heads=16)


@pytest.fixture(scope="module")
def gpu() -> CudaDevice:
    return CudaDevice(torch.device("cuda"))


@pytest.fixture
def repeatable_attention() -> Iterator[None]:
    """The other forms of attention add up in an order that changes from run to run."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def busy_compute() -> None:
    """Submit work of about a second."""
    matrix = torch.ones(8192, 8192, device="cuda")
    for _ in range(40):
        matrix = matrix @ matrix


@pytest.mark.parametrize(
    "num_bytes", [0, 1, RING.chunk_bytes, RING.chunk_bytes + 1, 3 * RING.num_bytes + 12345]
)
def test_bytes_come_back_as_they_went(gpu: CudaDevice, num_bytes: int) -> None:
    sent = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)
    slot = torch.empty_like(sent, device="cuda")
    received = torch.empty_like(sent)
    gpu.upload(slot, sent, gpu.submitted()).wait()
    gpu.download(slot, received, gpu.submitted()).wait()
    assert torch.equal(sent, received)


def test_a_download_in_other_strides_reads_its_source_to_the_end(gpu: CudaDevice) -> None:
    source = torch.ones(4096, 4096, device="cuda").t()
    received = torch.empty(4096, 4096)
    busy_compute()
    download = gpu.download(source, received, gpu.submitted())
    del source
    # What compute makes next could get the memory of a source that is let go.
    zeros = torch.zeros(4096, 4096, device="cuda")
    download.wait()
    assert received.sum().item() == 4096 * 4096
    assert zeros.sum().item() == 0


def test_a_capped_pass_leaves_the_share_that_the_process_had(gpu: CudaDevice) -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    small = CudaDevice(gpu.torch_device, budget_bytes=1 << 30)
    with small.active(), gpu.active():
        inner = torch.cuda.get_per_process_memory_fraction()
    after = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert inner == pytest.approx((1 << 30) / gpu.memory_bytes)
    # Kept in whole bytes.
    assert after == pytest.approx(0.5)


def test_a_graph_is_not_captured_of_streamed_weights(gpu: CudaDevice) -> None:
    slot = torch.zeros(16, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        slot.add_(1)  # A graph of nothing is warned of.
        with pytest.raises(OpenwaferError, match="device-graph"):
            gpu.submitted()


def test_an_upload_waits_for_the_last_use_of_its_slot(gpu: CudaDevice) -> None:
    slot = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    busy_compute()
    before = slot.clone()
    gpu.upload(slot, torch.ones(1 << 20, dtype=torch.uint8), gpu.submitted()).wait()
    after = slot.clone()
    assert (before.sum().item(), after.sum().item()) == (0, 1 << 20)


def test_a_download_waits_for_the_compute_that_makes_its_source(gpu: CudaDevice) -> None:
    busy_compute()
    made = torch.full((1 << 20,), 7, device="cuda")
    received = torch.empty(1 << 20, dtype=made.dtype)
    gpu.download(made, received, gpu.submitted()).wait()
    assert received.eq(7).all()


def test_the_host_does_not_wait_for_compute_when_compute_waits_for_weights(gpu: CudaDevice) -> None:
    slot = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    busy_compute()
    gpu.upload(slot, torch.ones(1 << 20, dtype=torch.uint8), None).wait()
    assert not torch.cuda.current_stream().query()


def test_a_ring_is_page_locked_to_its_last_byte() -> None:
    ring = PinnedRing(RingShape(chunk_bytes=3 << 20, num_chunks=3))
    pieces = [ring.claim(piece) for piece in ring.pieces(9 << 20)]
    assert [piece.is_pinned() for piece in pieces] == [True] * 3


def test_passing_the_budget_is_an_error_with_the_numbers() -> None:
    gpu = CudaDevice(torch.device("cuda"), budget_bytes=256 << 20)
    with pytest.raises(OpenwaferError, match="device-budget-exceeded") as caught, gpu.active():
        torch.empty(1 << 30, device="cuda")
    assert "its budget of 268,435,456 bytes" in str(caught.value)


@cache
def plain_parameters(*, clips: bool) -> Parameters:
    return train_on_gpu(gpu_run(clips=clips))


@cache
def planned_on_gpu(prefetch_layers: int | None, policy: Activations, *, clips: bool) -> Planned:
    options = replace(ON_GPU, prefetch_layers=prefetch_layers, default_activations=policy)
    return plan(gpu_run(clips=clips), options)


def test_a_step_on_a_gpu_is_planned_without_values() -> None:
    # Where fake tensors fail, a step is walked with values, and nothing else tells.
    assert not planned_on_gpu(None, Activations.KEEP, clips=False).plan.dry.depends_on_values


@pytest.mark.usefixtures("repeatable_attention")
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("policy", Activations)
@pytest.mark.parametrize("prefetch_layers", DEPTHS)
@pytest.mark.parametrize("tier", TIERS)
def test_parameters_are_those_of_the_plain_loop(
    tier: StoreTier, prefetch_layers: int | None, policy: Activations, clips: bool, tmp_path: Path
) -> None:
    run = gpu_run(clips=clips)
    planned = on_tier(planned_on_gpu(prefetch_layers, policy, clips=clips), tier, HOST_BYTES[tier])
    streamed = train_streamed(run, planned, folder=tmp_path / "store")
    found = streamed.parameters()
    streamed.close()
    assert differing(found, plain_parameters(clips=clips)) == []


@pytest.mark.usefixtures("repeatable_attention")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resident_run_goes_on_from_what_the_store_was_given(gpu: CudaDevice, name: str) -> None:
    broken, whole = (OneStore(OPTIMIZERS[name]) for _ in range(2))
    broken.go_on(DeviceResidentExecution, gpu, 2)
    broken.go_on(DeviceResidentExecution, gpu, 2)
    whole.go_on(DeviceResidentExecution, gpu, 4)
    assert differing(broken.arrays(), whole.arrays()) == []


@pytest.mark.usefixtures("repeatable_attention")
def test_a_resident_run_learns_what_the_run_in_host_memory_learns(gpu: CudaDevice) -> None:
    on_gpu, on_host = (OneStore(OPTIMIZERS["sgd"]) for _ in range(2))
    on_gpu.go_on(DeviceResidentExecution, gpu, 3)
    on_host.go_on(DeviceResidentExecution, CpuDevice(), 3)
    for name, expected in on_host.arrays().items():
        torch.testing.assert_close(on_gpu.arrays()[name], expected, rtol=1e-3, atol=1e-4)


@cache
def wide_run() -> Run:
    def draw(generator: torch.Generator) -> torch.Tensor:
        return torch.randint(0, 8192, (4, 512), generator=generator)

    run = gpu_run(clips=True)
    return replace(run, build=lambda: build_gpt(WIDE), draw=draw, loss_of=loss_on_gpu, num_steps=3)


def test_the_peak_is_the_predicted_one_and_under_the_budget() -> None:
    budget = 1 << 30
    planned = plan(wide_run(), replace(ON_GPU, mode=None), budget=budget)
    streamed = train_streamed(wide_run(), planned)
    peak = streamed.peak_bytes
    streamed.close()
    assert peak <= budget
    assert peak == pytest.approx(planned.plan.predicted_peak_bytes, rel=0.05)
