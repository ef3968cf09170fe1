"""The parts of measure.py, each in a process of its own: parts.py NAME DEVICE FILE.

What a part has found is in the file after each of its rows, so that it is not lost with the part.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run import Contestant, Entry, entries
from run_tokens import make_tokens
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from workload import Workload, build_model

import openwafer
from openwafer.atomic_file import write_text
from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.device.cuda import SEGMENT_BYTES
from openwafer.training.stream.stream_options import StreamOptions

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/training/stream_cuda/test_ring_shape.py",
    "tests/training/stream_cuda/test_cuda_device.py",
    "tests/training/sparsity/test_masks_on_cuda.py",
)


@dataclass
class Found:
    """Where rows go.

    Attributes:
        path: rewritten after each row.
        rows: of the table.
        figures: for the picture.
    """

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def row(
        self, what: str, value: str, target: str | None = None, *, is_reached: bool | None = None
    ) -> None:
        """Add a figure."""
        row = {"what": what, "value": value, "target": target, "is_reached": is_reached}
        self.rows.append(row)
        write_text(self.path, json.dumps({"rows": self.rows, "figures": self.figures}))


class Tally:
    """Counts tests as they end, so that a part that is stopped keeps what it has."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._counts = Counter[str]()
        self._failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A stage of a test has ended; one that passed counts when it was called."""
        if report.passed and report.when != "call":
            return
        self._counts[report.outcome] += 1
        if report.failed:
            self._failed.append(report.nodeid)
            print(f"{report.nodeid}\n{report.longreprtext}", flush=True)
        self._found.figures |= {**self._counts, "failed_names": self._failed}
        value = ", ".join(
            f"{self._counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")
        )
        self._found.rows.clear()
        self._found.row("CUDA tests", value, "none fails", is_reached=not self._failed)


def tests(_device: str, found: Found) -> None:
    """The tests that need CUDA; without it they are skipped."""
    # As whatever pytest is there knows them, and a warning that only a GPU gives fails none.
    options = ["-c", os.devnull, f"--rootdir={ROOT}", "-q", "-p", "no:cacheprovider", "--tb=no"]
    code = pytest.main([*options, *(str(ROOT / path) for path in TESTS)], plugins=[Tally(found)])
    if code is not pytest.ExitCode.OK:
        sys.exit(f"AssertionError: {code!r}")


@dataclass(frozen=True)
class BitsRun:
    """A short training whose kernels give the same bits each time."""

    device: str
    autocasts: bool
    num_steps: int = 5

    def build(self) -> ReferenceGpt:
        """A small model, the same each time."""
        torch.manual_seed(0)
        sizes = {"hidden_size": 128, "num_layers": 6, "num_heads": 4}
        return ReferenceGpt(GptConfig(vocab_size=512, context_length=64, **sizes))

    def backward(self, model: nn.Module, step: int) -> None:
        """Forward and backward of the step's batch."""
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 512, (4, 64), generator=generator).to(self.device)
        cast = torch.autocast(self.device, torch.bfloat16, cache_enabled=False)
        with cast if self.autocasts else nullcontext():
            loss = model(tokens, labels=tokens).loss
        loss.backward()

    def plain(self) -> list[Tensor]:
        """Weights of the plain loop: the model on the device, its optimizer in host memory."""
        on_host, on_device = self.build(), self.build().to(self.device)
        optimizer = torch.optim.AdamW(on_host.parameters(), lr=1e-3)
        pairs = [*zip(on_host.parameters(), on_device.parameters(), strict=True)]
        for step in range(self.num_steps):
            self.backward(on_device, step)
            for host, weight in pairs:
                assert weight.grad is not None
                host.grad, weight.grad = weight.grad.cpu(), None
            torch.nn.utils.clip_grad_norm_(on_host.parameters(), 1.0)
            optimizer.step()
            for host, weight in pairs:
                weight.data.copy_(host)
        return [weight.detach() for weight in on_host.parameters()]

    def streamed(self, activations: Activations) -> list[Tensor]:
        """Weights of the streamed loop."""
        model = self.build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        options = StreamOptions(
            device=self.device, mode=Mode.STREAMED, default_activations=activations
        )
        with openwafer.stream_weights(model, optimizer, device_memory="1GiB", options=options):
            for step in range(self.num_steps):
                self.backward(model, step)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return [weight.detach() for weight in model.parameters()]


def bits(device: str, found: Found) -> None:
    """Streamed training against the plain loop, where the order of every sum is fixed."""
    torch.use_deterministic_algorithms(True)
    for autocasts in (False, True):
        run = BitsRun(device, autocasts)
        with sdpa_kernel(SDPBackend.MATH):
            expected = run.plain()
            for activations in Activations:
                pairs = [*zip(run.streamed(activations), expected, strict=True)]
                differing = sum(not torch.equal(*pair) for pair in pairs)
                name = "bf16 autocast" if autocasts else "fp32"
                what = f"weights that differ from the plain loop's, {name}, {activations}"
                value = f"{differing} of {len(pairs)}"
                found.row(what, value, "0", is_reached=differing == 0)


def depth(device: str, found: Found) -> None:
    """Device memory of models that differ in their number of layers alone."""
    on_cpu = device == "cpu"
    width, depths = (64, (2, 4, 8)) if on_cpu else (1024, (4, 8, 16, 32))
    peaks = []
    for num_layers in depths:
        sizes = {"hidden_size": width, "num_layers": num_layers, "num_heads": width // 64}
        torch.manual_seed(0)
        model = ReferenceGpt(GptConfig(vocab_size=512, context_length=64, **sizes))
        optimizer = torch.optim.AdamW(model.parameters())
        recompute = Activations.RECOMPUTE
        options = StreamOptions(device=device, mode=Mode.STREAMED, default_activations=recompute)
        tokens = torch.zeros(1, 64, dtype=torch.long, device=device)
        with openwafer.stream_weights(
            model, optimizer, device_memory="8GiB", options=replace(options, prefetch_layers=1)
        ) as streamed:
            for _ in range(3):
                if not on_cpu:
                    torch.cuda.reset_peak_memory_stats()
                model(tokens, labels=tokens).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            assert streamed.plan is not None
            planned = streamed.plan.predicted_peak_bytes
            if on_cpu:
                peak = planned
            else:
                # The plan sets aside what the allocator may take beyond tensors.
                planned -= SEGMENT_BYTES
                peak = torch.cuda.max_memory_allocated()
                reserved = torch.cuda.max_memory_reserved()
                found.figures.setdefault("reserved_bytes", []).append(reserved)
        peaks.append(peak)
        found.figures |= {"layers": depths, "peak_bytes": peaks}
        share = peak / planned
        value = f"{peak / 2**20:.1f} MiB, {share:.3f} of the plan's tensors"
        is_reached = None if on_cpu else 0.95 <= share <= 1.05
        found.row(f"peak of {num_layers} layers", value, "0.95 to 1.05", is_reached=is_reached)
    growth = peaks[-1] / peaks[0]
    what = f"peak of {depths[-1]} layers / of {depths[0]}"
    found.row(what, f"{growth:.3f}", "1.05", is_reached=None if on_cpu else growth <= 1.05)


LARGE = Workload(
    layers=18,
    hidden=2048,
    intermediate=5632,
    heads=16,
    vocabulary=8192,
    sequences=2,
    tokens_per_sequence=2048,
    clip_norm=1.0,
    num_threads=os.cpu_count() or 1,
    micro_batch=4,
    device="cuda",
    weights="bf16",
)
"""0.96 B parameters."""
SMALL = replace(
    LARGE,
    layers=2,
    hidden=64,
    intermediate=128,
    heads=2,
    vocabulary=256,
    tokens_per_sequence=32,
    num_threads=1,
    device="cpu",
)


def throughput(device: str, found: Found) -> None:
    """A streamed run of a capped device beside the plain loop, which has all of the device."""
    base, cap = (SMALL, 64 << 20) if device == "cpu" else (LARGE, 8 << 30)
    contestants = (
        Contestant("plain loop", "adapter_resident.py", "dram"),
        Contestant("openwafer", "adapter_openwafer.py", "dram", device_bytes=cap),
    )
    shares: list[float] = []
    counts: list[int] = []
    # The one that has a target first: a part that is stopped keeps it.
    for sequences in (32, 8, 2):
        work = replace(base, sequences=sequences, micro_batch=min(sequences, 4))
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            make_tokens(work, scratch / "tokens", 6)
            python = Path(sys.executable)
            with entries(contestants, work, {False: python}, scratch) as running:
                plain, streamed = _turns(running)
                apart = _largest_difference(plain, streamed)
                memory = running[1].process.ask("device memory")["peak"]
                for entry in running:
                    entry.process.end()
        shares.append(plain.result.seconds / streamed.result.seconds)
        counts.append(work.tokens)
        found.figures |= {"tokens": counts, "shares": shares}
        is_reached = shares[-1] >= 0.95 if device != "cpu" and sequences == 32 else None
        what = f"speed of the plain loop that a step of {work.tokens} tokens reaches"
        value = f"{shares[-1]:.3f} ({streamed.result.seconds:.3f} s)"
        found.row(what, value, "0.95" if sequences == 32 else None, is_reached=is_reached)
        value = f"{memory / 2**30:.2f} GiB"
        is_below = None if device == "cpu" else memory <= cap
        found.row("its device memory", value, f"{cap / 2**30:g} GiB", is_reached=is_below)
        found.row("losses apart", f"{apart:.1e}", "2e-2", is_reached=apart <= 2e-2)


def _turns(running: list[Entry]) -> list[Entry]:
    """One turn that is not timed and two that are, of two steps each."""
    for number in range(3):
        for entry in running if number % 2 == 0 else reversed(running):
            entry.turn(2 * number, 2, is_timed=number > 0)
    return running


def _largest_difference(plain: Entry, streamed: Entry) -> float:
    pairs = zip(plain.result.losses, streamed.result.losses, strict=True)
    return max(abs(one - other) / one for one, other in pairs)


def generation(device: str, found: Found) -> None:
    """Tokens of a model whose weights are larger than the device memory it may take."""
    work, cap = (replace(SMALL, layers=60), 1 << 21) if device == "cpu" else (LARGE, 1 << 30)
    model = build_model(work).to(torch.bfloat16)
    model.config.use_cache = True
    num_bytes = sum(weight.nbytes for weight in model.parameters())
    prompts = torch.arange(8 * 16).reshape(8, 16).remainder(work.vocabulary).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = StreamOptions(device=device, mode=Mode.STREAMED)
    with openwafer.stream_weights(model, optimizer, device_memory=cap, options=options):
        model(input_ids=prompts[:1], labels=prompts[:1]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with _peak(device) as peak:
            streamed, seconds = _written(model, prompts)
    model.to(device)
    expected, resident = _written(model, prompts)
    is_equal = torch.equal(streamed, expected)
    found.row("tokens as of the resident model", str(is_equal), "True", is_reached=is_equal)
    found.row("weights", f"{num_bytes / 2**20:.1f} MiB beside a cap of {cap / 2**20:g}")
    if device != "cpu":
        value = f"{peak[0] / 2**20:.0f} MiB"
        found.row("peak", value, f"{cap / 2**20:.0f} MiB", is_reached=peak[0] <= cap)
        limit = max(num_bytes / link_rate(), resident)
        found.figures |= {"pass_seconds": seconds, "limit_seconds": limit, "resident": resident}
        what = "seconds a token of 8 texts / the larger of link and resident model"
        value = f"{seconds / limit:.2f} ({seconds:.3f} s)"
        found.row(what, value, "1.2", is_reached=seconds <= 1.2 * limit)


def _written(model: Any, prompts: Tensor) -> tuple[Tensor, float]:
    """Greedy texts, and the median seconds of a token."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        texts = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=8, min_new_tokens=8,
            do_sample=False, pad_token_id=0,
        ).cpu()  # fmt: skip
        seconds.append((time.perf_counter() - start) / 8)
    return texts, statistics.median(seconds)


@contextmanager
def _peak(device: str) -> Iterator[list[int]]:
    """The most device memory meanwhile, once it is left."""
    found: list[int] = []
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    yield found
    if device != "cpu":
        found.append(torch.cuda.max_memory_allocated())


def link_rate() -> float:
    """Bytes a second from page-locked memory to the device."""
    source = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    rates = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(source.nbytes / (time.perf_counter() - start))
    return max(rates)


PARTS: dict[str, Callable[[str, Found], None]] = {
    part.__name__: part for part in (tests, bits, depth, throughput, generation)
}


def main() -> None:
    name, device, path = sys.argv[1:]
    PARTS[name](device, Found(Path(path)))


if __name__ == "__main__":
    main()
