"""The loop of ``bench_systems.py`` under DeepSpeed's ZeRO-3, which is installed for it alone.

DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed==0.19.8
"""

import json
import os
import sys
import time
from pathlib import Path

import deepspeed
import torch
from bench_systems import build_model, dataset_of, peak_bytes
from torch import distributed as dist

from openwafer.config import load
from openwafer.training.session import RunConfig


def train(config: RunConfig) -> tuple[list[float], list[float]]:
    """Seconds and losses of the steps."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    deepspeed.init_distributed("gloo")
    dataset = dataset_of(config)
    model = build_model(config, dataset)
    count = config.batch.num_micro_batches // size
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=config.optimizer.learning_rate),
        config={
            "train_micro_batch_size_per_gpu": config.batch.size // config.batch.num_micro_batches,
            "gradient_accumulation_steps": count,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 3},
            "zero_allow_untested_optimizer": True,
        },
    )
    seconds, losses = [], []
    for step in range(config.steps):
        start = time.perf_counter()
        total = torch.zeros(())
        for batch in dataset.micro_batches(
            step, config.batch.num_micro_batches, range(rank * count, (rank + 1) * count)
        ):
            loss = engine(input_ids=batch.input_ids, labels=batch.labels).loss
            # It divides by the number of micro-batches.
            engine.backward(loss)
            engine.step()
            total += loss.detach() / count
        dist.all_reduce(total)
        seconds.append(time.perf_counter() - start)
        losses.append(total.item() / size)
    dist.destroy_process_group()
    return seconds, losses


if __name__ == "__main__":
    seconds, losses = train(load(Path(sys.argv[1]), RunConfig))
    print(json.dumps({"seconds": seconds, "losses": losses, "peak": peak_bytes()}))
