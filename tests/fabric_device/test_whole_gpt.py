"""A GPT of which nothing is left to the host: embedding, rotary attention, mlp, head and loss."""

from dataclasses import replace
from random import Random

import pytest
import torch

from openwafer.fabric_device import Fabric, FabricOptions
from openwafer.training.frontends import stream_weights
from openwafer.training.models import GptConfig, ReferenceGpt
from openwafer.training.plan_record import Activations
from openwafer.training.stream.stream_options import StreamOptions
from tests.tables import some

SMALL = GptConfig(
    vocab_size=6,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    mlp_size=10,
    context_length=8,
    init_std=0.5,
    has_tied_embeddings=False,
)


def loss_and_gradients(
    backend: Fabric | None,
    config: GptConfig = SMALL,
    activations: Activations = Activations.KEEP,
) -> tuple[float, dict[str, torch.Tensor]]:
    """Of two samples, by a backend if there is one; learning takes gradients off, as it were."""
    torch.manual_seed(0)
    model = ReferenceGpt(config)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # As many different tokens as there are.
    ids = torch.randperm(12, generator=torch.Generator().manual_seed(1)).view(2, 6)
    assert config.vocab_size is not None
    ids %= config.vocab_size

    def step() -> float:
        loss = model(ids, ids).loss
        loss.backward()
        optimizer.step()
        value: float = loss.item()
        return value

    if backend is None:
        loss = step()
    else:
        keeps = StreamOptions(min_layer_bytes=1, default_activations=activations, backend=backend)
        with stream_weights(model, optimizer, device_memory="1MiB", options=keeps):
            loss = step()
    return loss, {name: before[name] - one.detach() for name, one in model.named_parameters()}


@pytest.mark.parametrize(
    "activations", some([Activations.KEEP, Activations.RECOMPUTE], Activations.RECOMPUTE)
)
def test_a_step_is_torchs_and_only_losses_leave_the_wafer(activations: Activations) -> None:
    fabric = Fabric(FabricOptions(rows=2, columns=1))
    loss, gradients = loss_and_gradients(fabric, activations=activations)
    expected, of_torch = loss_and_gradients(None)
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, of_torch[name], rtol=1e-3, atol=1e-6, msg=name)
    report = fabric.report()
    assert (dict(report.copies_off), dict(report.host_calls)) == ({"cross_entropy": 1}, {})
    assert (report.loads, report.memory_bytes) == (0, fabric.foreseen_bytes)
    assert report.cycles_of("layers.0", "attention_delta") > 0
    fabric.close()


@pytest.mark.slow
def test_losses_that_are_kept_hold_nothing_on_the_wafer_behind_their_backward() -> None:
    fabric = Fabric(FabricOptions(rows=2, columns=1))
    model = ReferenceGpt(SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ids = torch.arange(12).view(2, 6) % 6
    options = StreamOptions(min_layer_bytes=1, backend=fabric)
    with stream_weights(model, optimizer, device_memory="1MiB", options=options):
        losses = [model(ids, ids).loss]
        losses[0].backward()
        taken = fabric.report().memory_bytes
        losses.append(model(ids, ids).loss)
        losses[1].backward()
    assert losses[0] == losses[1]
    assert fabric.report().memory_bytes == taken
    fabric.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_step_takes_the_memory_that_its_walk_has_counted(seed: int) -> None:
    drawn = Random(seed)
    config = replace(
        SMALL,
        vocab_size=drawn.randint(4, 20),
        num_layers=drawn.randint(1, 2),
        num_kv_heads=drawn.randint(1, 2),
        mlp_size=drawn.randint(8, 20),
    )
    rows, columns = drawn.choice([(1, 1), (2, 1), (4, 1), (2, 3)])
    fabric = Fabric(FabricOptions(rows, columns, generation=drawn.choice(["wse2", "wse3"])))
    loss_and_gradients(fabric, config, drawn.choice([Activations.KEEP, Activations.RECOMPUTE]))
    assert fabric.report().memory_bytes == fabric.foreseen_bytes
    fabric.close()
