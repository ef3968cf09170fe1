"""The device that a run asks for."""

from dataclasses import dataclass

import torch

from openwafer.diagnostics import error
from openwafer.training.stream.device.cuda import CudaDevice
from openwafer.training.stream.device.device import CpuDevice, Device


@dataclass(frozen=True)
class ChosenDevice:
    """What a run asks for.

    Attributes:
        name: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        memory_bytes: the memory setting; ``None`` is no cap.
        link_bytes_per_second: a slow link on the CPU device, for measurements.
        systems: ranks that run a step together.
    """

    name: str
    memory_bytes: int | None
    link_bytes_per_second: float | None
    systems: int


def has_own_memory(device: Device) -> bool:
    """Whether it is not the host's memory where the device computes."""
    return device.torch_device.type != "cpu"


def make_device(chosen: ChosenDevice) -> Device:
    """The device that was chosen.

    Raises:
        OpenwaferError: ``device-unknown`` when there is no such name, ``device-missing`` when
            it is not there, ``systems-device``.
    """
    name = chosen.name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch_device = torch.device(name)
    except RuntimeError as cause:
        raise error(
            "device-unknown",
            f"torch knows no device {chosen.name!r}",
            help="write auto, cpu, cuda or cuda:1",
        ) from cause
    if chosen.systems > 1 and torch_device.type != "cpu":
        raise error(
            "systems-device",
            f"{chosen.systems} systems train on the CPU, and the device is {torch_device}",
            help="set streaming.device to cpu, or train on one system",
        )
    if torch_device.type == "cpu":
        return CpuDevice(chosen.memory_bytes, chosen.link_bytes_per_second)
    if torch_device.type == "cuda" and (torch_device.index or 0) < torch.cuda.device_count():
        return CudaDevice(torch_device, chosen.memory_bytes)
    raise error(
        "device-missing",
        f"the device {chosen.name!r} is not here",
        notes=(f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices",),
        help="use device: cpu, or install a torch build for this accelerator",
    )
