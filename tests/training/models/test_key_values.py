"""A text that passes a model token by token, with keys and values kept, gives the same logits.

Sums over a text are taken in another order with kept keys and values, so logits are close and not
equal.
"""

import pytest
import torch
import transformers
from torch import nn

from openwafer.training.models import GptConfig, UserModule, build
from openwafer.training.models.key_values import (
    forward_from,
    kept_bytes,
    new_key_values,
    shorten,
)
from tests.tables import case
from tests.training.architectures import ARCHITECTURES, FAMILIES, Architecture

NUM_TOKENS = 12
GPT = GptConfig(
    vocab_size=64, context_length=16, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2
)
WRITERS = [row for row in ARCHITECTURES if row.model_class.endswith(("ForCausalLM", "LMHeadModel"))]
# These keep the state of recurrent layers, or their own form of memory, or nothing.
WITHOUT = {
    *("mamba", "mamba2", "jamba", "zamba2", "recurrent-gemma", "qwen3-next", "xlnet", "xlstm"),
    *("openai-gpt", "falcon-h1", "falcon-mamba", "rwkv", "granite-moe-hybrid", "bamba"),
    *("lfm2", "lfm2-moe", "minimax"),
}
keeping_rows, other_rows = (
    pytest.mark.parametrize(
        "row",
        [
            case(row, by_default=row.name in FAMILIES, id=row.name)
            for row in WRITERS
            if (row.name in WITHOUT) is is_without
        ],
    )
    for is_without in (False, True)
)


def tokens_of(vocab_size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, vocab_size, (1, NUM_TOKENS), generator=generator)


def cached_logits(model: nn.Module, tokens: torch.Tensor, starts: tuple[int, ...]) -> torch.Tensor:
    """Logits of a text that comes in pieces."""
    past = new_key_values(model)
    assert past is not None
    found = []
    for start, end in zip(starts, (*starts[1:], NUM_TOKENS), strict=True):
        output = forward_from(model, tokens[:, start:end], past)
        found.append(output.logits)  # type: ignore[attr-defined]
        assert past.get_seq_length() == end
    assert kept_bytes(past) > 0
    return torch.cat(found, dim=1)


def assert_close(model: nn.Module, tokens: torch.Tensor, starts: tuple[int, ...]) -> None:
    with torch.no_grad():
        whole = model.eval()(input_ids=tokens).logits
        torch.testing.assert_close(cached_logits(model, tokens, starts), whole)


@pytest.mark.parametrize("starts", [tuple(range(NUM_TOKENS)), (0, 5), (0, 5, 6, 9)])
def test_the_reference_gpt_reads_a_text_in_pieces(starts: tuple[int, ...]) -> None:
    assert_close(build(GPT, seed=0), tokens_of(64), starts)


@keeping_rows
def test_a_model_of_the_library_reads_a_text_token_by_token(row: Architecture) -> None:
    tokens = tokens_of(int(str(row.config["vocab_size"])))
    assert_close(row.build(), tokens, (0, *range(5, NUM_TOKENS)))


@keeping_rows
def test_tokens_taken_back_leave_no_trace(row: Architecture) -> None:
    model, tokens = row.build().eval(), tokens_of(int(str(row.config["vocab_size"])))
    past = new_key_values(model)
    assert past is not None
    with torch.no_grad():
        whole = model(input_ids=tokens).logits
        forward_from(model, torch.cat([tokens[:, :7], tokens[:, :3]], dim=1), past)
        if not shorten(past, 7):
            past = new_key_values(model)
            assert past is not None
        found = forward_from(model, tokens[:, past.get_seq_length() :], past).logits  # type: ignore[attr-defined]
    torch.testing.assert_close(found[:, -5:], whole[:, -5:])


def test_a_window_that_tokens_have_passed_cannot_be_shortened() -> None:
    config = transformers.MistralConfig(num_hidden_layers=1, sliding_window=4)
    lengths = {}
    for num_tokens in (3, 4):
        past = transformers.DynamicCache(config=config)
        past.update(*torch.zeros(2, 1, 1, num_tokens, 2), 0)
        lengths[num_tokens] = shorten(past, 2), past.get_seq_length()
    assert lengths == {3: (True, 2), 4: (False, 4)}


@other_rows
def test_a_model_with_state_of_another_kind_keeps_nothing(row: Architecture) -> None:
    assert new_key_values(row.build()) is None


def test_a_module_of_one_s_own_keeps_nothing() -> None:
    assert new_key_values(build(UserModule("torch.nn:Identity"), seed=0)) is None
