"""BTLM knows positions by distance alone, as ALiBi of the transformers library has it."""

import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from openwafer.recipes.btlm.model import Btlm, distance_bias

HEADS, TOKENS = 4, 7


def test_attention_is_that_of_blooms_alibi() -> None:
    torch.manual_seed(0)
    scores = torch.randn(HEADS, TOKENS, TOKENS)
    alibi = build_alibi_tensor(torch.ones(1, TOKENS), HEADS, torch.float32)
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    expected = (scores + alibi).masked_fill(hidden, float("-inf")).softmax(-1)
    found = (scores + distance_bias(HEADS, TOKENS, scores.device)).softmax(-1)
    torch.testing.assert_close(found, expected)


def test_a_sequence_may_have_any_length_and_sees_no_later_token() -> None:
    torch.manual_seed(0)
    model = Btlm(vocab_size=20, hidden_size=16, mlp_size=24, num_layers=2, num_heads=HEADS)
    ids = torch.randint(20, (2, 40))
    torch.testing.assert_close(model(ids).logits[:, :TOKENS], model(ids[:, :TOKENS]).logits)
