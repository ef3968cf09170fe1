"""A model of the transformers library whose mlps have ReLU, and as many zeros as trained ones."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

VOCAB, SIZE, LAYERS = 300, 32, 2


def _config(activation: str) -> OPTConfig:
    return OPTConfig(
        vocab_size=VOCAB,
        hidden_size=SIZE,
        ffn_dim=4 * SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=64,
        word_embed_proj_dim=SIZE,
        activation_function=activation,
        dropout=0.1,
        pad_token_id=0,
        use_cache=False,
    )


def rectified() -> nn.Module:
    """OPT; biases keep nine of ten hidden units at zero."""
    model: nn.Module = OPTForCausalLM(_config("relu"))
    for name, parameter in model.named_parameters():
        if name.endswith("fc1.bias"):
            with torch.no_grad():
                parameter.fill_(-0.15)
    return model


def without_relu() -> nn.Module:
    """The same with GELU."""
    model: nn.Module = OPTForCausalLM(_config("gelu"))
    return model


def without_linears() -> nn.Module:
    """ReLU, but in front of the library's own kind of linear module."""
    sizes = {"n_positions": 64, "n_embd": SIZE, "n_layer": LAYERS, "n_head": 2}
    config = GPT2Config(vocab_size=VOCAB, activation_function="relu", **sizes)
    model: nn.Module = GPT2LMHeadModel(config)
    return model
