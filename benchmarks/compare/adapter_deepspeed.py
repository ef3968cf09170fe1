"""DeepSpeed ZeRO-3, parameters and optimizer offloaded to host memory or to disk ("nvme").

Runs in an environment of its own; docs/guide/comparison.md says how to make it.
"""

import os
from collections.abc import Iterator

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from system import Setup, serve
from workload import ADAMW, Workload, build_model, loss_of


def zero_config(setup: Setup) -> dict[str, object]:
    """Settings of the run; the reasons stand in docs/guide/comparison.md."""
    is_disk = setup.tier == "disk"
    where: dict[str, object] = {"device": "cpu", "pin_memory": False}
    if is_disk:
        where = {"device": "nvme", "nvme_path": str(setup.folder), "pin_memory": True}
    layer = numel_of_layer(setup.workload)
    mlp = setup.workload.hidden * setup.workload.intermediate
    head = setup.workload.hidden * setup.workload.vocabulary
    pipelined = {"pipeline_read": True, "pipeline_write": True, "buffer_count": 12}
    return {
        "train_micro_batch_size_per_gpu": setup.workload.sequences,
        "gradient_clipping": setup.workload.clip_norm or 0.0,
        "optimizer": {"type": "AdamW", "params": {**ADAMW, "torch_adam": False}},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": layer,
            "stage3_prefetch_bucket_size": head // 2 - mlp if is_disk else 2 * layer,
            "stage3_param_persistence_threshold": 10 * setup.workload.hidden,
            "stage3_max_live_parameters": 2 * layer,
            "stage3_max_reuse_distance": layer,
            "sub_group_size": layer if is_disk else 1_000_000_000,
            "offload_optimizer": {**where, **(pipelined if is_disk else {})},
            "offload_param": {
                **where,
                **(
                    {"buffer_count": 16, "buffer_size": max(head, mlp), "max_in_cpu": 0}
                    if is_disk
                    else {}
                ),
            },
        },
        "aio": {
            "block_size": 1 << 20,
            "queue_depth": 8,
            "intra_op_parallelism": 1,
            "single_submit": False,
            "overlap_events": True,
        },
        "steps_per_print": 1_000_000,
    }


def numel_of_layer(workload: Workload) -> int:
    """Parameters of one decoder layer, roughly."""
    return 4 * workload.hidden**2 + 3 * workload.hidden * workload.intermediate


class DeepSpeed:
    """The engine's own loop of forward, backward and step."""

    def __init__(self, setup: Setup) -> None:
        single = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {**single, "MASTER_PORT": "0"}
        deepspeed.init_distributed("gloo", rank=0, world_size=1)
        model, config = build_model(setup.workload), zero_config(setup)
        # Left to initialize(), the conversion takes bfloat16 for the swap buffers of an fp32 model
        # wherever the accelerator has no fp16.
        deepspeed.zero.Init(module=model, config_dict_or_path=config)
        self._engine, *_ = deepspeed.initialize(model=model, config=config)

    def step(self, tokens: torch.Tensor) -> float:
        loss = loss_of(self._engine, tokens)
        self._engine.backward(loss)
        self._engine.step()
        return loss.item()

    def settle(self) -> None:
        """The optimizer waits for its own reads and writes."""

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._engine.module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter]):
                yield name, parameter.detach()

    def close(self) -> None:
        self._engine.destroy()


if __name__ == "__main__":
    serve(DeepSpeed)
