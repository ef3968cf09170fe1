"""Operators that accelerators have as one kernel: what they leave, and that values stay."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from openwafer.training.methods.fused_kernels import fused_kernels
from openwafer.training.stream.plan.operators import CountingMeter

TOKENS, HEADS, WIDTH = 256, 2, 16


def heads(num_heads: int = HEADS, width: int = WIDTH) -> Tensor:
    return torch.randn(1, num_heads, TOKENS, width, requires_grad=True)


def attention(dropout: float = 0.0, kv_heads: int = HEADS, value_width: int = WIDTH) -> Tensor:
    return functional.scaled_dot_product_attention(
        heads(),
        heads(kv_heads),
        heads(kv_heads, value_width),
        dropout_p=dropout,
        is_causal=True,
        enable_gqa=kv_heads < HEADS,
    )


def multi_head() -> Tensor:
    given = torch.randn(1, TOKENS, HEADS * WIDTH, requires_grad=True)
    module = nn.MultiheadAttention(HEADS * WIDTH, HEADS, dropout=0.1, batch_first=True)
    found: Tensor = module(given, given, given, need_weights=False)[0]
    return found


def with_learned_mask() -> Tensor:
    mask = torch.randn(TOKENS, TOKENS, requires_grad=True)
    return functional.scaled_dot_product_attention(heads(), heads(), heads(), mask)


CALLS = {
    "dropout": lambda: attention(dropout=0.1),
    "fewer heads of keys": lambda: attention(kv_heads=1),
    "values of another width": lambda: attention(value_width=8),
    "a module of torch": multi_head,
    "a learned mask": with_learned_mask,
}


def bytes_left(call: Callable[[], Tensor]) -> int:
    """That a call holds with its graph, its leaves among them; the backward goes through."""
    with fused_kernels(), FakeTensorMode(), CountingMeter() as meter:
        out = call()
        left: int = meter.used_bytes
        out.sum().backward()
    return left


@pytest.mark.parametrize("name", CALLS)
def test_no_attention_leaves_its_scores(name: str) -> None:
    assert bytes_left(CALLS[name]) < 4 * HEADS * TOKENS**2


def test_dropout_leaves_a_byte_for_each_number() -> None:
    def call() -> Tensor:
        return functional.dropout(torch.randn(100, requires_grad=True), 0.5)

    assert bytes_left(call) == 400 + 400 + 100


def test_a_norm_leaves_a_number_for_each_row() -> None:
    def call() -> Tensor:
        return functional.rms_norm(torch.randn(10, 8, requires_grad=True), (8,))

    assert bytes_left(call) == 320 + 320 + 40


@pytest.mark.parametrize(
    "call",
    [
        attention,
        lambda: functional.rms_norm(heads(), (WIDTH,), torch.ones(WIDTH), 1e-6),
        lambda: functional.dropout(heads(), 0.5, training=False),
        lambda: functional.dropout(heads(), 1.0),
    ],
)
def test_forwards_that_depend_on_values_have_them(call: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    expected = call()
    torch.manual_seed(0)
    with fused_kernels():
        assert torch.equal(call(), expected)


def test_other_threads_keep_their_own_operators() -> None:
    names: list[str] = []

    def note() -> None:
        names.append(str(functional.dropout(heads(), 0.5).grad_fn).split()[0])

    with fused_kernels():
        note()
        other = threading.Thread(target=note)
        other.start()
        other.join()
    assert names == ["<NativeDropoutBackward0", "<MulBackward0"]


def test_afterwards_operators_are_those_of_torch() -> None:
    with fused_kernels():
        pass
    assert "MulBackward0" in str(functional.dropout(heads(), 0.5).grad_fn)
