"""The plain PyTorch loop: weights, gradients and optimizer state stay where they are."""

from collections.abc import Iterator

import torch
from system import Setup, serve
from workload import build_model, build_optimizer, plain_step


class Resident:
    """The reference of the comparison, with torch's fused AdamW."""

    def __init__(self, setup: Setup) -> None:
        self._model = build_model(setup.workload)
        self._optimizer = build_optimizer(self._model)
        self._clip_norm = setup.workload.clip_norm

    def step(self, tokens: torch.Tensor) -> float:
        return plain_step(self._model, self._optimizer, tokens, self._clip_norm)

    def settle(self) -> None:
        """Nothing is ever under way between steps."""

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._model.named_parameters():
            yield name, parameter.detach()

    def close(self) -> None:
        """The process ends."""


if __name__ == "__main__":
    serve(Resident)
