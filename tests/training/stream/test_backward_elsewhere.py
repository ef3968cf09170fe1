"""A backward in another thread than its forward, as on a GPU, and outside of its contexts."""

from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import openwafer
from openwafer.training.plan_record import Activations
from tests.tables import case, some
from tests.training.stream.both_loops import STREAMED
from tests.training.stream.small_gpt import adamw, build_gpt, gpt_loss, gpt_run

Backward = Callable[[torch.Tensor], None]


def in_a_thread(loss: torch.Tensor) -> None:
    """Autograd has a thread for each GPU."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            loss.backward()
        except BaseException as cause:  # noqa: BLE001 - raised below
            failed.append(cause)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer, backward: Backward) -> None:
    for step in range(2):
        for index in range(2):
            # Without dropout, which would draw elsewhere, too.
            with sdpa_kernel(SDPBackend.MATH):
                loss = gpt_loss(model.eval(), gpt_run().batch(step, index))
            backward(loss / 2)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("link_bytes_per_second", [1e9, case(None, by_default=False)])
@pytest.mark.parametrize("policy", some(Activations, Activations.RECOMPUTE))
def test_weights_are_those_of_the_plain_loop(
    policy: Activations, link_bytes_per_second: float | None
) -> None:
    plain, model = build_gpt(), build_gpt()
    trained(plain, adamw(plain), in_a_thread)
    optimizer = adamw(model)
    options = replace(
        STREAMED, default_activations=policy, link_bytes_per_second=link_bytes_per_second
    )
    with openwafer.stream_weights(model, optimizer, device_memory="1GiB", options=options):
        trained(model, optimizer, in_a_thread)
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
