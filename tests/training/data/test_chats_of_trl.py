"""Tokens and labels of chats and prompts are those that TRL's trainer makes of the same rows."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed")

import datasets
import trl
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.training.data.templates import CALLING, TEMPLATES, save_tokenizer
from tests.training.data.test_chats import CHAT, prepared
from tests.training.data.test_chats_with_tools import ROW

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
Sample = tuple[list[int], list[int]]
BEHIND = {"column": "completion", "prompt_column": "prompt"}


def of_trl(folder: Path, row: dict[str, Any], **options: Any) -> Sample:
    """Ids and labels of the first batch."""
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, pad_token="</s>")
    arguments = trl.SFTConfig(
        str(folder / "run"), report_to=[], use_cpu=True, bf16=False, **options
    )
    trainer = trl.SFTTrainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=datasets.Dataset.from_list([row]),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    return batch["input_ids"][0].tolist(), batch["labels"][0].tolist()


def ours(folder: Path, row: dict[str, Any], **options: Any) -> Sample:
    batch = next(prepared(folder, [row], **options).once())
    size = batch.without_padding[0].numel()
    return batch.input_ids[0, :size].tolist(), batch.labels[0, :size].tolist()


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_completions_of_chats_are_trls(name: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, TEMPLATES[name])
    row = {"prompt": CHAT[:3], "completion": CHAT[3:]}
    assert ours(tmp_path, row, **BEHIND) == of_trl(tmp_path, row)


def test_completions_of_texts_are_trls(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, None)
    row = {"prompt": "2 + 2 is", "completion": " four"}
    assert ours(tmp_path, row, **BEHIND) == of_trl(tmp_path, row)


def test_answers_that_a_template_marks_are_trls(tmp_path: Path) -> None:
    row = {"messages": CHAT}
    save_tokenizer(tmp_path, TEMPLATES["marked"])
    assert ours(tmp_path, row) == of_trl(tmp_path, row, assistant_only_loss=True)


def test_completions_with_tools_are_trls(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, CALLING)
    messages = ROW["messages"]
    row = {"prompt": messages[:1], "completion": messages[1:], "tools": ROW["tools"]}
    assert ours(tmp_path, row, tools_column="tools", **BEHIND) == of_trl(tmp_path, row)
