"""Models built in a scratch file have the bits of models built in memory."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.deferred_memory import DeferredMemory

PAGE = 4096


class LegacyInit(nn.Module):
    """Allocates and initialises in every way that modules in the wild do."""

    def __init__(self) -> None:
        super().__init__()
        self.legacy = nn.Parameter(torch.Tensor(64, 48))
        nn.init.xavier_uniform_(self.legacy)
        self.scaled = nn.Parameter(torch.randn(64, 48) * 0.02)
        self.narrow = nn.Parameter(torch.rand(64, 48).to(torch.bfloat16))
        self.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(48, 48)))
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.zeros(64, 48), std=0.02))
        self.like = nn.Parameter(torch.full_like(self.legacy, 3.0) + torch.rand_like(self.legacy))
        self.seeded = nn.Parameter(torch.rand(64, 48, generator=torch.Generator().manual_seed(3)))
        self.register_buffer("mask", torch.ones(64, 64).tril())


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "linear and embedding": lambda: nn.Sequential(
        nn.Embedding(100, 32), nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 32, bias=False)
    ),
    "attention": lambda: nn.TransformerEncoderLayer(32, 4, 64),
    "other allocations": LegacyInit,
    "gpt2": lambda: AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    ),
    "llama in bfloat16": lambda: AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
        ),
        dtype=torch.bfloat16,
    ),
}


def build(builder: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(11)
    return builder()


@pytest.mark.parametrize("resident_pages", [0, 10_000])
@pytest.mark.parametrize("name", BUILDERS)
def test_a_deferred_model_has_the_bits_of_a_resident_one(
    tmp_path: Path, name: str, resident_pages: int
) -> None:
    resident = build(BUILDERS[name]).state_dict()
    with DeferredMemory(tmp_path, resident_bytes=resident_pages * PAGE, min_bytes=PAGE):
        deferred = build(BUILDERS[name]).state_dict()
    assert [key for key in resident if not torch.equal(resident[key], deferred[key])] == []


@pytest.mark.parametrize("name", BUILDERS)
def test_the_random_generator_is_left_in_the_same_state(tmp_path: Path, name: str) -> None:
    build(BUILDERS[name])
    after_resident = torch.get_rng_state()
    with DeferredMemory(tmp_path, min_bytes=PAGE):
        build(BUILDERS[name])
    assert torch.equal(torch.get_rng_state(), after_resident)


def test_large_tensors_are_in_the_file_and_small_ones_are_not(tmp_path: Path) -> None:
    with DeferredMemory(tmp_path, min_bytes=PAGE):
        tensors = torch.empty(1023), torch.empty(1024), torch.empty(1024, device="meta")
    starts = [mapped_file(tensor.data_ptr()) for tensor in tensors]
    assert [str(tmp_path) in start for start in starts] == [False, True, False]


def mapped_file(address: int) -> str:
    """The file that an address of this process is mapped to, or an empty text."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if start <= address < end:
            return line.partition("/")[2].join("/ ")
    return ""


def test_the_scratch_file_has_no_name(tmp_path: Path) -> None:
    with DeferredMemory(tmp_path, min_bytes=PAGE):
        torch.ones(10_000)
    assert list(tmp_path.iterdir()) == []


def test_content_survives_the_eviction_of_its_pages(tmp_path: Path) -> None:
    with DeferredMemory(tmp_path, resident_bytes=PAGE, min_bytes=PAGE) as memory:
        ones, twos = torch.full((5000,), 1.0), torch.full((5000,), 2.0)
        memory.trim()
    assert (float(ones.sum()), float(twos.sum())) == (5000, 10_000)


def test_a_deferred_model_trains_like_a_resident_one(tmp_path: Path) -> None:
    with DeferredMemory(tmp_path, min_bytes=64):
        deferred = build(lambda: nn.Linear(8, 8))
    resident = build(lambda: nn.Linear(8, 8))
    for model in (deferred, resident):
        model(torch.ones(2, 8)).square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.equal(deferred.get_parameter("weight"), resident.get_parameter("weight"))


def test_a_model_larger_than_the_scratch_disk_is_refused(tmp_path: Path) -> None:
    with (
        DeferredMemory(tmp_path),
        pytest.raises(
            OpenwaferError, match=r"cannot grow from 0 to \d+ bytes: the disk has \d+ bytes free"
        ),
    ):
        torch.empty(2**45)


MEASURE = """
import sys, threading, time
from pathlib import Path
import torch
from torch import nn
from openwafer.training.store.deferred_memory import DeferredMemory

def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile")))

nn.Linear(2048, 2048)
before = peak = resident_kib()

def sample():
    global peak
    while True:
        peak = max(peak, resident_kib())
        time.sleep(0.005)

threading.Thread(target=sample, daemon=True).start()
with DeferredMemory(Path(sys.argv[1]), resident_bytes=128 << 20):
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(int(sys.argv[2]))])
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
print((peak - before) // 1024)
"""


@pytest.mark.slow
def test_a_model_of_1500_mb_is_built_with_less_than_300_mb(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURE, str(tmp_path), "24"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300
