"""Configs of the Model Zoo's trainer that are run by the vendor's own packages, one a variant."""

import json
from pathlib import Path
from typing import Any, Final

VOCABULARY, LENGTH, STEPS = 64, 16, 50

Config = dict[str, Any]

GPT: Final[Config] = {
    "name": "gpt3", "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
    "num_heads": 4, "filter_size": 64, "position_embedding_type": "learned",
    "max_position_embeddings": LENGTH, "share_embedding_weights": True, "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0, "nonlinearity": "gelu", "loss_scaling": "num_tokens",
}  # fmt: skip
LLAMA: Final[Config] = GPT | {
    "name": "llama", "position_embedding_type": "rotary", "rotary_dim": 8, "norm_type": "rmsnorm",
    "nonlinearity": "swiglu", "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 2}, "use_ffn_bias": False,
    "use_projection_bias_in_attention": False, "use_ffn_bias_in_attention": False,
}  # fmt: skip
ROUTING: Final[Config] = {
    "num_experts": 4, "top_k": 1, "routing_algorithm": "learned", "router_fp32": True,
    "load_balancing_loss_coef": 0.01, "null_expert_bias": 1.1,
}  # fmt: skip
MIXTRAL: Final[Config] = {key: value for key, value in GPT.items() if key != "loss_scaling"} | {
    "name": "mixtral", "position_embedding_type": "alibi", "nonlinearity": "swiglu",
    "moe": ROUTING,
}  # fmt: skip
MUP: Final[Config] = GPT | {
    "mup_base_hidden_size": 16, "mup_base_filter_size": 32, "embeddings_scale": 10.0,
    "output_logits_alpha": 1.0, "scale_qk_dot_by_d": True,
}  # fmt: skip
T5: Final[Config] = {
    "name": "t5", "src_vocab_size": VOCABULARY, "extra_ids": 0, "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2, "dropout_rate": 0.0, "d_kv": 8, "num_heads": 4, "d_model": 32,
    "d_ff": 64, "position_embedding_type": "relative", "src_max_position_embeddings": LENGTH,
    "tgt_max_position_embeddings": LENGTH, "norm_type": "rmsnorm", "lm_loss_weight": 1 / LENGTH,
}  # fmt: skip
PAIRS: Final = ["input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask",
                "labels"]  # fmt: skip
CHANGES: Final[Config] = {"freq": 5, "stop": 40}
RIGL: Final[Config] = {
    "algorithm": "rigl", "sparsity": 0.5, "drop_fraction": 0.3, "update": CHANGES,
}  # fmt: skip
COSINE: Final[Config] = {"type": "cosine", "init": 0.3, "half_period": 40}


def config(model: Config = GPT, **init: Any) -> Config:
    """A run of 50 steps in bf16; `init` replaces what the trainer is made of."""
    loader: Config = {"batch_size": 8, "shuffle": False, "num_workers": 0}
    is_pairs = model["name"] == "t5"
    loader |= {
        "data_processor": "T5HDF5DataProcessor" if is_pairs else "GptHDF5MapDataProcessor",
        "data_dir": "@pairs" if is_pairs else "@texts",
        **({"features_list": PAIRS} if is_pairs else {}),
    }
    rates = {"initial_learning_rate": 5e-4, "end_learning_rate": 5e-5, "total_iters": STEPS}
    trainer: Config = {
        "seed": 1,
        "model": model,
        "optimizer": {"AdamW": {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "schedulers": [{"LinearLR": rates}],
        "precision": {"fp16_type": "bfloat16", "max_gradient_norm": 1.0},
        "loop": {"max_steps": STEPS},
        "checkpoint": {"steps": 25, "save_initial_checkpoint": True},
        "logging": {"log_steps": 1},
    }
    fit = {"train_dataloader": loader}
    if "eval_steps" in init.get("loop", {}):
        fit["val_dataloader"] = loader
    return {"trainer": {"init": trainer | init, "fit": fit}}


VARIANTS: Final[dict[str, Config]] = {
    "dense": config(),
    "static": config(sparsity={"algorithm": "static", "sparsity": 0.5}),
    "gmp": config(
        sparsity={
            "algorithm": "gmp",
            "schedule": {"type": "exp", "init": 0.0, "gamma": -0.02},
            "update": CHANGES,
        }
    ),
    "rigl": config(sparsity=RIGL),
    "rigl_cosine": config(sparsity=RIGL | {"drop_fraction": COSINE}),
    "mup": config(MUP),
    "moe": config(MIXTRAL),
    "llama": config(LLAMA),
    "alibi": config(GPT | {"position_embedding_type": "alibi"}),
    "lion": config(optimizer={"Lion": {"betas": [0.9, 0.99], "weight_decay": 0.1}}),
    "resume": config(),
    "evaluation": config(loop={"max_steps": STEPS, "eval_frequency": 50, "eval_steps": 4}),
    "t5": config(T5),
}


def write_variants(folder: Path) -> None:
    """Write each as FOLDER/NAME.yaml (a JSON, which is one), for data in that folder."""
    for name, found in VARIANTS.items():
        text = json.dumps(found, indent=1)
        for data in ("texts", "pairs"):
            text = text.replace(f"@{data}", str(folder / data))
        (folder / f"{name}.yaml").write_text(text)
