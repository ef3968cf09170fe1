"""The plain loop on a GPU whose optimizer works in host memory, as the parameter store's does."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from openwafer.training.step import clip_coefficient, tensor_norms, total_norm
from tests.training.stream.both_loops import Parameters, Run, seed_of
from tests.training.stream.small_gpt import gpt_loss, gpt_run


def loss_on_gpu(model: nn.Module, tokens: Tensor) -> Tensor:
    return gpt_loss(model, tokens.to("cuda"))


def gpu_run(*, clips: bool) -> Run:
    run = gpt_run(num_steps=5, num_micro_batches=2, clips=clips)
    return replace(run, loss_of=loss_on_gpu)


def train_on_gpu(run: Run) -> Parameters:
    """Parameters after the loop; gradients are clipped on the GPU and applied on the host."""
    on_host, on_gpu = run.build(), run.build().to("cuda")
    optimizer = run.optimize(on_host)
    for step in range(run.num_steps):
        for index, batch in enumerate(run.batches(step)):
            seed_of(step, index)
            (run.loss_of(on_gpu, batch) / run.num_micro_batches).backward()
        _hand_over(on_gpu, on_host, _coefficient(run, on_gpu))
        optimizer.step()
        with torch.no_grad():
            for source, target in zip(on_host.parameters(), on_gpu.parameters(), strict=True):
                target.copy_(source)
    return {name: parameter.detach() for name, parameter in on_host.named_parameters()}


def _coefficient(run: Run, model: nn.Module) -> float:
    if run.clip_norm is None:
        return 1.0
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return clip_coefficient(total_norm(tensor_norms(gradients)), run.clip_norm)


def _hand_over(on_gpu: nn.Module, on_host: nn.Module, coefficient: float) -> None:
    for source, target in zip(on_gpu.parameters(), on_host.parameters(), strict=True):
        assert source.grad is not None
        target.grad = source.grad.cpu() * coefficient
        source.grad = None
