"""PyTorch FSDP2, fully_shard a decoder layer, with CPUOffloadPolicy, one process on gloo."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from system import Setup, serve
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from workload import PlainLoop, build_model


class Fsdp2:
    """Weights, gradients and optimizer state are offloaded, layer by layer."""

    def __init__(self, setup: Setup) -> None:
        meeting = (setup.folder / "meeting").resolve().as_uri()
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        self._model = build_model(setup.workload)
        mesh = init_device_mesh("cpu", (1,))
        # Pinned memory needs an accelerator; without one torch refuses to pin.
        policy = CPUOffloadPolicy(pin_memory=False)
        for layer in self._model.model.layers:
            fully_shard(layer, mesh=mesh, offload_policy=policy)
        fully_shard(self._model, mesh=mesh, offload_policy=policy)
        self._loop = PlainLoop(self._model, setup.workload)

    def step(self, tokens: torch.Tensor) -> float:
        return self._loop.step(tokens)

    def settle(self) -> None:
        """Nothing is ever under way between steps."""

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._model.named_parameters():
            yield name, parameter.full_tensor().detach()

    def close(self) -> None:
        dist.destroy_process_group()


if __name__ == "__main__":
    serve(Fsdp2)
