"""Sparse attention is dense attention under the mask of its pattern, for less work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import Task, TransformersModel, build
from openwafer.training.models.attention_in_parts import Part, parts_of
from openwafer.training.models.attention_pattern import pattern_of
from openwafer.training.models.sparse_attention import sparse_attention
from openwafer.training.stream.flops import flops_of
from tests.tables import case

TOKENS = 100
SEES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sliding-40": lambda query, key: query - key < 40,
    "strided-16": lambda query, key: (query // 16 == key // 16) | (key % 16 == 15),
    "blocks-16-2-1": lambda query, key: (query // 16 - key // 16 <= 2) | (key < 16),
}
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def mask_of(name: str) -> Tensor:
    query, key = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
    return (key <= query) & SEES[name](query, key)


def drawn(num_heads: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, num_heads, TOKENS, 8, generator=generator).requires_grad_()


@pytest.mark.parametrize("name", SEES)
@pytest.mark.parametrize("num_queries", [TOKENS, 1, 37])
def test_it_is_dense_attention_under_its_mask(name: str, num_queries: int) -> None:
    query, key, value = drawn(4, 0), drawn(2, 1), drawn(2, 2)
    last = query[:, :, -num_queries:]
    found = sparse_attention(pattern_of(name), last, (key, value), scale=0.5)
    expected = F.scaled_dot_product_attention(
        last, key, value, attn_mask=mask_of(name)[-num_queries:], scale=0.5, enable_gqa=True
    )
    torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad(out.square().sum(), (query, key, value)) for out in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "name",
    [
        "blocks-300-0-2",
        "blocks-300-2-0",
        "blocks-300-5-3",
        "blocks-300-9-9",
        "blocks-64-30-1",
        "sliding-1",
        "sliding-300",
        "sliding-1500",
        "strided-64",
    ],
)
@pytest.mark.parametrize("num_tokens", [1200, 1201])
def test_each_key_that_a_query_sees_is_in_one_part(name: str, num_tokens: int) -> None:
    kind, *numbers = name.split("-")
    size, *others = map(int, numbers)
    query, key = torch.arange(num_tokens)[:, None], torch.arange(num_tokens)
    sees = {
        "blocks": lambda: (query // size - key // size <= others[0]) | (key < size * others[1]),
        "sliding": lambda: query - key < size,
        "strided": lambda: (query // size == key // size) | (key % size == size - 1),
    }
    found = torch.zeros(num_tokens, num_tokens)
    for part in parts_of(pattern_of(name), num_tokens):
        _count(part, found)
    torch.testing.assert_close(found, (sees[kind]() & (key <= query)).float())


def _count(part: Part, found: Tensor) -> None:
    """Add one for each query and key of a part."""
    tokens = torch.arange(len(found))[None]
    rows, keys = (part.in_order(one.of(tokens))[0] for one in (part.queries, part.keys))
    for row_S, key_S in zip(rows, keys, strict=True):
        sees = torch.ones(len(row_S), len(key_S))
        found[row_S[:, None], key_S] += sees.tril() if part.is_causal else sees


@pytest.mark.parametrize("dims", [(1, 2), (2, 3)])
@pytest.mark.parametrize("name", SEES)
def test_tensors_may_lie_in_another_order(name: str, dims: tuple[int, int]) -> None:
    tensors = [drawn(2, seed) for seed in range(3)]
    query, key, value = (one.transpose(*dims).contiguous().transpose(*dims) for one in tensors)
    found = sparse_attention(pattern_of(name), query, (key, value))
    query, key, value = tensors
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_of(name))
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(out.square().sum(), tensors) for out in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float64, 8)])
def test_values_of_another_size_and_doubles_are_exact(dtype: torch.dtype, size: int) -> None:
    tensors = [drawn(2, seed).detach().to(dtype).requires_grad_() for seed in range(3)]
    query, key, value = tensors
    found = sparse_attention(pattern_of("blocks-16-2-1"), query, (key, value[..., :size]))
    mask = mask_of("blocks-16-2-1")
    expected = F.scaled_dot_product_attention(query, key, value[..., :size], attn_mask=mask)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(out.square().sum(), tensors) for out in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", SEES)
def test_padding_is_hidden_besides(name: str) -> None:
    query, key, value = drawn(4, 0), drawn(2, 1), drawn(2, 2)
    # The first key of a row stays, so that no query sees none.
    is_token = torch.rand(2, 1, 1, TOKENS, generator=torch.Generator().manual_seed(3)) < 0.8
    seen = (is_token | torch.eye(TOKENS, dtype=torch.bool)).expand(2, 1, TOKENS, TOKENS)
    found = sparse_attention(pattern_of(name), query, (key, value), seen)
    expected = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask_of(name) & seen, enable_gqa=True
    )
    torch.testing.assert_close(found, expected)


class CountsFlops(TorchDispatchMode):
    """Counts them as plans do; torch's own counter knows no attention of a CPU."""

    num_flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.num_flops += flops_of(func, args, kwargs or {}, out)
        return out


@pytest.mark.parametrize("name", SEES)
def test_work_grows_with_the_pattern(name: str) -> None:
    key = torch.randn(1, 1, 2048, 8)
    with CountsFlops() as sparse:  # type: ignore[no-untyped-call]
        sparse_attention(pattern_of(name), key, (key, key))
    # Triangles count as rectangles; the strided one has a sixteenth of all keys.
    assert 0.03 < sparse.num_flops / (4 * 2048 * 2048 * 8) < 0.075


@pytest.mark.parametrize("architecture", ["llama", case("gpt2", by_default=False)])
def test_a_model_of_the_library_takes_it_by_name(architecture: str) -> None:
    sizes = SIZES | HEADS if architecture == "llama" else {"n_embd": 32, "n_layer": 2, "n_head": 4}
    dense, sparse, all_of_it = (
        build(TransformersModel(architecture, config={**sizes, "vocab_size": 50, **more}), 0).eval()
        for more in (
            {},
            {"attn_implementation": "sliding-8"},
            {"attn_implementation": "sliding-99"},
        )
    )
    ids = torch.randint(50, (2, 64), generator=torch.Generator().manual_seed(0))
    whole = dense(ids).logits
    torch.testing.assert_close(all_of_it(ids).logits, whole)
    torch.testing.assert_close(sparse(ids).logits[:, :8], whole[:, :8])
    assert not torch.allclose(sparse(ids).logits[:, 8:], whole[:, 8:])


@pytest.mark.parametrize("name", ["sliding-0", "strided-x", "blocks-16-2", "sliding-8-8"])
def test_a_pattern_that_is_none_is_told(name: str) -> None:
    with pytest.raises(OpenwaferError, match=f"no sparse attention is called '{name}'"):
        build(TransformersModel("llama", config={"attn_implementation": name}), 0)


def test_a_model_that_sees_tokens_behind_is_refused() -> None:
    config = {"attn_implementation": "sliding-8", **SIZES, "num_attention_heads": 4}
    model = build(TransformersModel("bert", Task.MASKED_LM, config), 0)
    with pytest.raises(OpenwaferError, match="sees tokens behind, and sparse attention sees none"):
        model(torch.zeros(1, 16, dtype=torch.long))


GROUPED = {**SIZES, **HEADS, "head_dim": 8}


@pytest.mark.parametrize(
    ("architecture", "more", "told"),
    [
        ("gemma2", {}, r"Gemma2Attention bounds its scores by a tanh \(softcap\)"),
        ("gpt_oss", {"num_local_experts": 2}, r"GptOssAttention has attention sinks.* \(s_aux\)"),
    ],
)
def test_a_model_whose_scores_torch_has_no_kernel_for_is_refused(
    architecture: str, more: dict[str, int], told: str
) -> None:
    config = {**GROUPED, **more, "attn_implementation": "sliding-8"}
    model = build(TransformersModel(architecture, config=config), 0)
    with pytest.raises(OpenwaferError, match=f"{told}, and sparse attention does not"):
        model(torch.zeros(1, 16, dtype=torch.long))


def test_a_model_that_could_bound_its_scores_and_does_not_is_served() -> None:
    config = {**GROUPED, "attn_logit_softcapping": None}
    ids = torch.randint(50, (2, 64), generator=torch.Generator().manual_seed(0))
    dense, sparse = (
        build(TransformersModel("gemma2", config={**config, **more}), 0).eval()(ids).logits
        for more in ({}, {"attn_implementation": "sliding-99"})
    )
    torch.testing.assert_close(sparse, dense)


@pytest.mark.parametrize("name", SEES)
def test_a_sequence_without_tokens_is_refused(name: str) -> None:
    query, key = drawn(4, 0)[:, :, :0], drawn(2, 1)[:, :, :0]
    with pytest.raises(OpenwaferError, match=r"\(2, 4, 0, 8\) are of 0 tokens"):
        sparse_attention(pattern_of(name), query, (key, key))


def test_what_heads_share_is_kept_once() -> None:
    query, key, value = drawn(4, 0), drawn(1, 1), drawn(1, 2)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: query):
        out = sparse_attention(pattern_of("blocks-16-2-1"), query, (key, value))
    sums = query[..., 0]
    assert sum(map(Tensor.numel, kept)) == sum(map(Tensor.numel, (query, key, value, out, sums)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SEES)
def test_gradients_of_shared_keys_are_as_exact_as_of_repeated_ones(
    name: str, dtype: torch.dtype
) -> None:
    made = [drawn(16 if seed == 0 else 1, seed).detach().to(dtype) for seed in range(3)]
    query, key, value = whole = [one.double().requires_grad_() for one in made]
    out = F.scaled_dot_product_attention(query, *repeated(key, value), attn_mask=mask_of(name))
    grad = drawn(16, 3).detach().to(dtype)
    expected = torch.autograd.grad(out, whole, grad.double())
    query, key, value = tensors = [one.requires_grad_() for one in made]
    shared, alone = (
        torch.autograd.grad(sparse_attention(pattern_of(name), query, pair), tensors, grad)
        for pair in ((key, value), repeated(key, value))
    )
    for one, other, exact in zip(shared, alone, expected, strict=True):
        assert (one - exact).norm() <= 1.5 * (other - exact).norm()


def repeated(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return key.repeat_interleave(16, 1), value.repeat_interleave(16, 1)
