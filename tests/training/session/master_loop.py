"""The plain loop over a bf16 copy of fp32 masters, as it is written by hand."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from openwafer.training.data import prepare
from openwafer.training.models import build, loss_of
from openwafer.training.models.build import with_vocab_size
from openwafer.training.session import RunConfig, TrainResult
from openwafer.training.session.building import tokenizer_of
from openwafer.training.session.forward import micro_batch_seed
from openwafer.training.session.optimizers import build_optimizers
from openwafer.training.store.update_rules.update_pass import SplitMaster, join_master
from tests.training.session.tiny_runs import AfterStep, saved_arrays


def master_loop(
    config: RunConfig, after_step: AfterStep = lambda model: None
) -> Mapping[str, Tensor]:
    """The masters after the steps of a run, by name."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    assert config.data.folder is not None
    dataset = prepare(preparation, config.data.folder)
    masters = build(with_vocab_size(config.model, dataset.tokenizer.vocab_size), config.seed)
    rounded = copy.deepcopy(masters).to(torch.bfloat16)
    optimizers = build_optimizers(masters, config.optimizer)
    schedule = config.schedule.build(config.steps)
    dtype = config.precision.autocast_dtype
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    for step in range(config.steps):
        for group in groups:
            group["lr"] = config.optimizer.learning_rate * schedule(step)
        batches = dataset.micro_batches(step, config.batch.num_micro_batches)
        for index, batch in enumerate(batches):
            torch.manual_seed(micro_batch_seed(config.seed, step, index))
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                output = rounded(input_ids=batch.input_ids, labels=batch.labels)
            (loss_of(output) / len(batches)).backward()
        _update(masters, rounded, optimizers, config.clip_norm)
        after_step(masters)
    return dict(masters.named_parameters())


def _update(
    masters: nn.Module,
    rounded: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, ...],
    clip_norm: float | None,
) -> None:
    pairs = list(zip(masters.parameters(), rounded.parameters(), strict=True))
    for master, weight in pairs:
        master.grad = None if weight.grad is None else weight.grad.float()
        weight.grad = None
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(masters.parameters(), clip_norm)
    for optimizer in optimizers:
        optimizer.step()
    with torch.no_grad():
        for master, weight in pairs:
            weight.copy_(master)


def saved_masters(result: TrainResult) -> Mapping[str, Tensor]:
    """The masters in the checkpoint at the end of a run."""
    arrays = saved_arrays(result)
    masters = {}
    for name, weight in arrays.items():
        if f"master_low_bits/{name}" in arrays:
            low, ties = arrays[f"master_low_bits/{name}"], arrays[f"master_tie_bits/{name}"]
            parts = SplitMaster(weight.view(-1), low.view(-1), ties)
            masters[name] = join_master(parts, torch.empty(weight.numel())).view(weight.shape)
    return masters
