"""A network trained on the simulated wafer, against torch."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.fabric_device import Fabric, FabricOptions
from openwafer.training.frontends import stream_weights
from openwafer.training.models.reference_gpt import GptConfig, Mlp
from openwafer.training.plan_record import Activations
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.stream.stream_options import StreamOptions
from tests.tables import case

NUM_TOKENS, NUM_FEATURES, HIDDEN, NUM_CLASSES = 6, 5, 8, 3
OPTIONS = FabricOptions(rows=2, columns=1)
STREAMED = StreamOptions(min_layer_bytes=1, default_activations=Activations.KEEP)


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    backend = Fabric(OPTIONS)
    yield backend
    backend.close()


def model(*last: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    first, second = nn.Linear(NUM_FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN, bias=False)
    end = last or (nn.Linear(HIDDEN, NUM_CLASSES),)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *end)


def train(trained: nn.Module, backend: Fabric | None, num_steps: int = 2) -> list[float]:
    """Losses, by a backend if there is one."""
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    drawn, losses = torch.Generator().manual_seed(1), []
    stream: AbstractContextManager[object] = nullcontext()
    if backend is not None:
        options = replace(STREAMED, backend=backend)
        stream = stream_weights(trained, optimizer, device_memory="1MiB", options=options)
    with stream:
        for _ in range(num_steps):
            x = torch.randn(NUM_TOKENS, NUM_FEATURES, generator=drawn)
            labels = torch.randint(0, NUM_CLASSES, (NUM_TOKENS,), generator=drawn)
            loss = nn.functional.cross_entropy(trained(x), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def test_a_network_on_the_wafer_has_torchs_losses(fabric: Fabric) -> None:
    found, expected = train(model(), fabric, 6), train(model(), None, 6)
    assert found == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0]


def test_activations_stay_on_the_wafer_between_layers(fabric: Fabric) -> None:
    train(model(), fabric)
    report = fabric.report()
    # Of each step the input and the gradient of the loss come, and only the loss reads.
    assert (report.copies_on, report.copies_off) == (4, {"cross_entropy": 2})
    passes = {(one.layer, one.name): one for one in report.passes}
    assert ("0", "delta") not in passes
    assert {passes[layer, "gradient"].left for layer in "024"} == {96, 128, 54}
    assert "4      gradient" in report.table()
    assert 0.01 < report.utilisation < 1
    own = next(one for one in report.outlook if (one.rows, one.tokens) == (2, 8))
    assert own.cycles == sum(one.predicted_cycles for one in report.passes)
    assert 12 * 1024 < report.memory_bytes < 48 * 1024


def test_copies_through_the_edge_take_cycles_and_change_no_bit(fabric: Fabric) -> None:
    by_edge = Fabric(replace(OPTIONS, transport="edge"))
    assert train(model(), by_edge) == train(model(), fabric)
    reports = [one.report() for one in (fabric, by_edge)]
    assert reports[0].passes == reports[1].passes
    words = [re.search(r"by the ports copies (.*) more", one.table())[1] for one in reports]  # type: ignore[index]
    assert words[0] == words[1].replace("took", "would take")
    by_edge.close()


def test_sums_of_activations_stay_there_forward_and_backward(fabric: Fabric) -> None:
    class Residual(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x).relu()

    def built() -> nn.Module:
        torch.manual_seed(1)
        return model(Residual(HIDDEN, HIDDEN), nn.Linear(HIDDEN, NUM_CLASSES))

    assert train(built(), fabric) == pytest.approx(train(built(), None), rel=1e-4)
    assert fabric.report().copies_off == {"cross_entropy": 2}


@pytest.mark.parametrize("norm", [nn.RMSNorm, case(nn.LayerNorm, by_default=False)])
def test_norms_and_gates_of_a_transformer_are_computed_on_the_wafer(
    norm: Callable[..., nn.Module], fabric: Fabric
) -> None:
    def built() -> nn.Module:
        torch.manual_seed(1)
        mlp = Mlp(GptConfig(hidden_size=HIDDEN, num_heads=1, mlp_size=10))
        gelu = nn.GELU(approximate="tanh")
        return model(norm(HIDDEN), mlp, gelu, norm(HIDDEN), nn.Linear(HIDDEN, NUM_CLASSES))

    assert train(built(), fabric, 1) == pytest.approx(train(built(), None, 1), rel=1e-4)
    assert fabric.report().copies_off == {"cross_entropy": 1}


def test_of_sparse_weights_only_what_is_kept_streams(fabric: Fabric) -> None:
    def packed() -> nn.Module:
        built = model()
        pack_linears(built, {"2.weight": 20}, lambda _, weight: _first(weight, 20))
        return built

    assert train(packed(), fabric) == pytest.approx(train(packed(), None), rel=1e-4)
    passes = {(one.layer, one.name): one for one in fabric.report().passes}
    assert passes["2", "gradient"].left == 2 * 20


def _first(weight: Tensor, count: int) -> Tensor:
    mask = torch.zeros(weight.numel(), dtype=torch.bool)
    mask[torch.randperm(weight.numel())[:count]] = True
    return mask.view(weight.shape)


@pytest.mark.slow
def test_a_layer_left_to_the_host_is_computed_there_and_counted() -> None:
    fabric = Fabric(replace(OPTIONS, host=("4",)))
    assert train(model(), fabric) == pytest.approx(train(model(), None), rel=1e-4)
    assert fabric.report().host_calls == {"4": 2}
    assert "computed on the host: 4 2" in fabric.report().table()


class Squashed(nn.Linear):
    """Calls a function that has no kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (nn.PReLU(HIDDEN), "'4', a PReLU, is not computed by this device"),
        (nn.Sequential(nn.RMSNorm(8), nn.RMSNorm(8, eps=1.0)), r"'4\.1', a RMSNorm, is not"),
        (nn.Linear(HIDDEN, 3, dtype=torch.double), r"no kernel for weights of torch\.float64"),
        (Squashed(HIDDEN, 3), "'4', a Squashed, is not computed[^$]*torch's tanh inside it"),
    ],
)
def test_what_no_kernel_computes_is_refused_by_its_name(
    last: nn.Module, words: str, fabric: Fabric
) -> None:
    with pytest.raises(OpenwaferError, match=words):
        train(model(last), fabric)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"columns": 4}, "6 tokens on 4 columns of PEs"),
        ({"columns": 800}, "2 rows and 800 columns of PEs; wse3 has room for"),
        ({"rows": 20, "ports": 1}, "1 ports for 20 rows of PEs"),
        ({"host": ("0", "mlp*")}, r"'mlp\*', which matches none of the \d layers: '0', '"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OpenwaferError, match=words):
        train(model(), Fabric(replace(OPTIONS, **given)))
