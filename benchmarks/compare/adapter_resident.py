"""The plain PyTorch loop: weights, gradients and optimizer state stay where they are."""

from collections.abc import Iterator

import torch
from system import Setup, serve
from workload import PlainLoop, build_model


class Resident:
    """The reference of the comparison."""

    def __init__(self, setup: Setup) -> None:
        self._device = torch.device(setup.workload.device)
        self._model = build_model(setup.workload).to(self._device)
        self._loop = PlainLoop(self._model, setup.workload)

    def step(self, tokens: torch.Tensor) -> float:
        return self._loop.step(tokens)

    def settle(self) -> None:
        """The host may be ahead of the device."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._model.named_parameters():
            yield name, parameter.detach()

    def close(self) -> None:
        """The process ends."""


if __name__ == "__main__":
    serve(Resident)
