"""Measures what a plan's times rest on: the rates of this machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median

import torch


@dataclass(frozen=True)
class MachineRates:
    """Rates of the machine that computes.

    Attributes:
        flops_per_second: fp32 matrix products.
        copy_bytes_per_second: bytes copied a second within host memory.
    """

    flops_per_second: float
    copy_bytes_per_second: float


@cache
def measure_rates(device: torch.device) -> MachineRates:
    """Time a matrix product and a copy on the device, for about a tenth of a second."""
    size = 4096 if device.type == "cuda" else 768
    left = torch.ones(size, size, device=device)
    product = _seconds(lambda: left @ left, device)
    source = torch.ones(4 << 20, device=device)
    target = torch.empty_like(source)
    copy = _seconds(lambda: target.copy_(source), device)
    return MachineRates(2 * size**3 / product, source.nbytes / copy)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return median(times[2:])
