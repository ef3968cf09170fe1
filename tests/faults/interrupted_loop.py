"""A loop of a user's own on all processes of a launcher; run as a script.

Its arguments are the folder of the stores and the number of steps.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import openwafer
from openwafer.training.stream import StreamOptions
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with openwafer.stream_weights(
        model,
        optimizer,
        device_memory="64KiB",
        folder=Path(sys.argv[1]),
        systems="all",
        options=StreamOptions(tier=StoreTier.DISK, store_systems=StoreSystems.ALL),
    ) as streamed:
        for step in range(int(sys.argv[2])):
            model(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if streamed.rank == 0:
                sys.stdout.write(f"step {step}/\n")
