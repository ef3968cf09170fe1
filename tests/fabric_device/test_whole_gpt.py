"""A GPT of which nothing is left to the host: embedding, rotary attention, mlp, head and loss."""

import pytest
import torch

from openwafer.fabric_device import Fabric, FabricOptions
from openwafer.training.frontends import stream_weights
from openwafer.training.models import GptConfig, ReferenceGpt
from openwafer.training.plan_record import Activations
from openwafer.training.stream.stream_options import StreamOptions

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


def loss_and_gradients(backend: Fabric | None) -> tuple[float, dict[str, torch.Tensor]]:
    """Of two samples, by a backend if there is one; learning takes gradients off, as it were."""
    torch.manual_seed(0)
    model = ReferenceGpt(SMALL)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ids = torch.randint(0, 6, (2, 6), generator=torch.Generator().manual_seed(1))

    def step() -> float:
        loss = model(ids, ids).loss
        loss.backward()
        optimizer.step()
        value: float = loss.item()
        return value

    if backend is None:
        loss = step()
    else:
        keeps = StreamOptions(
            min_layer_bytes=1, default_activations=Activations.KEEP, backend=backend
        )
        with stream_weights(model, optimizer, device_memory="1MiB", options=keeps):
            loss = step()
    return loss, {name: before[name] - one.detach() for name, one in model.named_parameters()}


def test_a_step_is_torchs_and_only_losses_leave_the_wafer() -> None:
    fabric = Fabric(FabricOptions(rows=2, columns=1))
    loss, gradients = loss_and_gradients(fabric)
    expected, of_torch = loss_and_gradients(None)
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, of_torch[name], rtol=1e-3, atol=1e-6, msg=name)
    report = fabric.report()
    assert (dict(report.copies_off), dict(report.host_calls)) == ({"cross_entropy": 1}, {})
    assert report.loads == 2
    assert report.cycles_of("layers.0", "attention_delta") > 0
    fabric.close()
