"""A user's program with the two lines of the guide, started by torchrun; saves what rank 0 has."""

import sys

import torch

import openwafer
from tests.training.stream.small_gpt import TIED, adamw, build_gpt, gpt_loss, gpt_run


def main(path: str) -> None:
    """Train for two steps."""
    model = build_gpt(TIED)
    optimizer = adamw(model)
    with openwafer.stream_weights(
        model, optimizer, device_memory="1MiB", systems="all"
    ) as streamed:
        for step in range(2):
            torch.manual_seed(1000 * step + streamed.rank)
            loss = gpt_loss(model, gpt_run().batch(step, streamed.rank))
            (loss / streamed.num_systems).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        if streamed.rank == 0:
            torch.save(model.state_dict(), path)


if __name__ == "__main__":
    main(sys.argv[1])
