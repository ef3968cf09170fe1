"""Keys of other trainers' configs, and what says the same here.

The names are those of the transformers library's TrainingArguments, of PyTorch Lightning,
DeepSpeed, nanoGPT and the wafer vendor's Model Zoo.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_REMEDIES: Final = {
    "optimizer: {learning_rate: ...}": ("lr", "learning_rate", "max_lr", "peak_lr"),
    "optimizer: {weight_decay: ...}": ("weight_decay", "wd"),
    "optimizer: {options: {betas: [..., ...]}}": (
        "betas",
        "adam_beta1",
        "adam_beta2",
        "beta1",
        "beta2",
    ),
    "optimizer: {options: {eps: ...}}": ("eps", "adam_epsilon"),
    "optimizer: {name: ...}": ("optim", "optimizer_type"),
    "precision: bf16": ("bf16", "use_bf16"),
    "precision: fp16": ("fp16", "use_fp16"),
    "precision: fp32, bf16 or fp16": ("dtype", "torch_dtype", "mixed_precision", "amp"),
    "matmul_precision: high or highest": ("tf32", "float32_matmul_precision"),
    "batch: {micro_batches: ...}": (
        *("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum"),
        *("accumulation_steps", "num_micro_batches"),
    ),
    "batch: {micro_batch_size: ...}": (
        *("per_device_train_batch_size", "train_micro_batch_size_per_gpu", "micro_batch_size"),
    ),
    "batch: {size: ...}, samples of a step over all micro-batches and systems": (
        *("batch_size", "train_batch_size", "global_batch_size"),
    ),
    "batch: {sequence_length: ...}": (
        *("seq_len", "seq_length", "sequence_length", "max_seq_length", "max_sequence_length"),
        *("block_size", "max_length", "context_length"),
    ),
    "schedule: {options: {num_warm_up_steps: ...}}": (
        *("warmup_steps", "num_warmup_steps", "warmup_iters", "warm_up_steps", "warmup"),
    ),
    "schedule: {options: {num_warm_up_steps: ...}}, in steps": ("warmup_ratio",),
    "schedule: {name: ...}": ("lr_scheduler", "lr_scheduler_type", "scheduler", "lr_schedule"),
    "steps: ...": (
        "max_steps",
        "num_steps",
        "max_iters",
        "train_steps",
        "total_steps",
        "iterations",
    ),
    "steps: ..., an epoch has tokens / (batch.size x batch.sequence_length)": (
        *("epochs", "num_epochs", "num_train_epochs", "max_epochs"),
    ),
    "clip_norm: ...": ("max_grad_norm", "grad_clip", "gradient_clipping", "gradient_clip_val"),
    "folder: ... and name: ..., the run is in folder/name": (
        "output_dir",
        "out_dir",
        "model_dir",
        "run_name",
    ),
    "checkpoint: {every: ...}": ("save_steps", "checkpoint_steps", "save_every", "save_interval"),
    "checkpoint: {keep: ...}": ("save_total_limit",),
    "evaluate: {every: ...}": ("eval_steps", "eval_interval", "eval_every", "eval_frequency"),
    "evaluate: {batches: ...}": ("eval_iters", "max_eval_samples"),
    "log_every: ...": ("logging_steps", "log_interval", "log_steps"),
    "data: {source: {kind: ..., paths: [...]}}": (
        "dataset",
        "dataset_name",
        "train_file",
        "data_dir",
        "data_path",
    ),
    "data: {tokenizer: {path: ...}}": ("tokenizer", "tokenizer_name"),
    "model: {path: ...}, a folder": ("model_name_or_path", "model_name", "checkpoint_path"),
    "streaming: {activations: recompute}": (
        *("gradient_checkpointing", "activation_checkpointing", "checkpoint_activations"),
    ),
    "streaming: {device: ...}": ("device", "accelerator", "use_cpu", "no_cuda"),
    "device_memory: ..., what does not fit streams": (
        "offload",
        "cpu_offload",
        "zero_optimization",
    ),
    "systems: ..., and start it by `openwafer train --systems N` or torchrun": (
        *("num_gpus", "num_nodes", "world_size", "num_csx", "devices", "n_gpu"),
    ),
    "`openwafer resume FOLDER`": ("resume", "resume_from_checkpoint", "load_checkpoint"),
    "sparsity: {sparsity: ..., algorithm: ...}": ("sparse", "sparsify", "mask", "pruning"),
}

FOREIGN_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        key: remedy if remedy.startswith("`") else f"write {remedy}"
        for remedy, keys in _REMEDIES.items()
        for key in keys
    }
)
"""The help for each."""
