"""A program with a Trainer of transformers, as torchrun or one process runs it.

Writes the weights and what was logged into a file; given a checkpoint, goes on from there.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from openwafer.training.frontends.hugging_face import StreamedTrainer
from openwafer.training.stream import StreamOptions

NUM_STEPS = 4
STREAM: dict[str, Any] = {
    "device_memory": "1MiB",
    "systems": "all",
    "options": StreamOptions(host_memory_bytes=1 << 30),
}


def build_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=32,
            tie_word_embeddings=True,
        )
    )


def texts() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(0, 128, (12,), generator=generator) for _ in range(64)]
    return [{"input_ids": tokens, "labels": tokens} for tokens in drawn]


def arguments(folder: Path, num_accumulated: int) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        use_cpu=True,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=num_accumulated,
        max_steps=NUM_STEPS,
        logging_steps=1,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        max_grad_norm=0.5,
        report_to=[],
        disable_tqdm=True,
    )


def make_trainer(args: TrainingArguments, *, streams: bool) -> Trainer:
    model, data = build_llama(), texts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    given: dict[str, Any] = {"train_dataset": data, "eval_dataset": data[:8]}
    kind = partial(StreamedTrainer, **STREAM) if streams else Trainer
    return kind(model, args, optimizers=(optimizer, None), **given)


TOLD = ("step", "loss", "grad_norm", "eval_loss")


def main(folder: Path, *, streams: bool, num_accumulated: int, checkpoint: str | None) -> None:
    """Train to the last step."""
    args = arguments(folder, num_accumulated)
    trainer = make_trainer(args, streams=streams)
    trainer.train(resume_from_checkpoint=checkpoint)
    if args.should_save:
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        told = [{k: v for k, v in one.items() if k in TOLD} for one in trainer.state.log_history]
        torch.save((weights, told), folder / "left.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(
        Path(sys.argv[1]),
        streams=sys.argv[2] == "streamed",
        num_accumulated=int(sys.argv[3]),
        checkpoint=sys.argv[4] if len(sys.argv) > 4 else None,
    )
