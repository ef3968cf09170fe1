"""PEFT's adapters, and the trainers of TRL, over weights that stream."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="the Trainer of transformers asks for accelerate")
pytest.importorskip("peft", reason="PEFT is not installed")

import peft
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2ForSequenceClassification, PreTrainedTokenizerFast, Trainer

from openwafer.training.frontends.hugging_face import StreamedTrainer, StreamingCallback
from tests.training.frontends.trainers import (
    STREAM,
    Build,
    Left,
    apart,
    arguments,
    build_gpt2,
    plain,
    streamed,
    trained,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
WIDER = {**STREAM, "device_memory": "4MiB"}
WORDS = [f"w{number}" for number in range(61)]


def lora(task: str = "CAUSAL_LM") -> Any:
    return peft.LoraConfig(
        task_type=task, r=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True
    )


def adapted() -> Any:
    return peft.get_peft_model(build_gpt2(), lora())


def with_adapter(build: Build, folder: Path) -> Left:
    trainer = build(arguments(folder, load_best_model_at_end=True), model=adapted())
    return trained(trainer)


def test_an_adapter_trains_over_a_frozen_model_that_streams(tmp_path: Path) -> None:
    found = with_adapter(streamed, tmp_path / "a")
    assert apart(found, with_adapter(plain, tmp_path / "b")) == []


def test_a_saved_adapter_is_gone_on_from_exactly(tmp_path: Path) -> None:
    expected = trained(plain(arguments(tmp_path / "b"), model=adapted()))
    streamed(arguments(tmp_path / "a"), model=adapted()).train()
    rest = trained(
        streamed(arguments(tmp_path / "a"), model=adapted()), tmp_path / "a" / "checkpoint-2"
    )
    assert apart(rest._replace(told=rest.told[:-1] + expected.told[-1:]), expected) == []


def test_a_trained_adapter_is_merged_and_saved(tmp_path: Path) -> None:
    trainer = streamed(arguments(tmp_path), model=adapted())
    trainer.train()
    trainer.streamed.close()
    expected = plain(arguments(tmp_path), model=adapted())
    expected.train()
    found, other = (one.model.merge_and_unload().state_dict() for one in (trainer, expected))
    assert [name for name in other if not torch.equal(found[name], other[name])] == []


def tokenizer() -> PreTrainedTokenizerFast:
    tokens = ["<pad>", "<eos>", "<unk>", *WORDS]
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(tokens)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def words(start: int, count: int) -> str:
    return " ".join(WORDS[(start * 7 + 3 * at) % len(WORDS)] for at in range(count))


def preferences() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list(
        [
            {"prompt": words(at, 4), "chosen": words(at + 1, 3), "rejected": words(at + 2, 3)}
            for at in range(16)
        ]
    )


def completions() -> Any:
    return preferences().remove_columns("rejected").rename_column("chosen", "completion")


def settings(kind: Any, folder: Path, **others: Any) -> Any:
    return kind(
        str(folder),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=2,
        max_steps=3,
        gradient_accumulation_steps=2,
        logging_steps=1,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        **others,
    )


def fine_tuned(kind: Any, folder: Path, **given: Any) -> Left:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    trainer: Trainer = kind(
        model=build_gpt2(),
        args=settings(trl.SFTConfig, folder, max_length=16),
        train_dataset=completions(),
        processing_class=tokenizer(),
        **given,
    )
    return trained(trainer)


def preferred(kind: Any, folder: Path, **given: Any) -> Left:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    trainer: Trainer = kind(
        model=build_gpt2(),
        # Without one, TRL looks for a saved model to refer to; an adapter is left out in its place.
        ref_model=None if given["peft_config"] else build_gpt2(),
        args=settings(trl.DPOConfig, folder, max_length=16),
        train_dataset=preferences(),
        processing_class=tokenizer(),
        **given,
    )
    return trained(trainer)


def rewarded(kind: Any, folder: Path, peft_config: Any, **given: Any) -> Left:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    torch.manual_seed(0)
    config = build_gpt2().config
    config.num_labels, config.pad_token_id = 1, 0
    trainer: Trainer = kind(
        model=GPT2ForSequenceClassification(config),
        args=settings(trl.RewardConfig, folder, max_length=16),
        train_dataset=preferences(),
        processing_class=tokenizer(),
        peft_config=peft_config and lora("SEQ_CLS"),
        **given,
    )
    return trained(trainer)


def num_words(completions: list[str], **_: Any) -> list[float]:
    """A reward: longer is better."""
    return [float(len(set(text.split()))) for text in completions]


def explored(kind: Any, folder: Path, **given: Any) -> Left:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    sizes = {"num_generations": 2, "max_completion_length": 4}
    trainer: Trainer = kind(
        model=build_gpt2(),
        reward_funcs=num_words,
        args=settings(trl.GRPOConfig, folder, **sizes),
        train_dataset=preferences().select_columns("prompt"),
        processing_class=tokenizer(),
        **given,
    )
    return trained(trainer)


def kinds_of(name: str) -> tuple[Any, Any]:
    """A trainer of TRL, and one that streams."""
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    own = getattr(trl, name)
    return own, partial(type(f"Streamed{name}", (StreamedTrainer, own), {}), **WIDER)


RUNS: dict[str, Any] = {
    "SFTTrainer": fine_tuned,
    "DPOTrainer": preferred,
    "RewardTrainer": rewarded,
    "GRPOTrainer": explored,
}


@pytest.mark.parametrize("peft_config", [None, lora()], ids=["whole", "lora"])
@pytest.mark.parametrize("name", RUNS)
def test_a_trainer_of_trl_leaves_the_same_bits(name: str, peft_config: Any, tmp_path: Path) -> None:
    (own, streaming), run = kinds_of(name), RUNS[name]
    expected = run(own, tmp_path / "plain", peft_config=peft_config)
    assert apart(run(streaming, tmp_path / "a", peft_config=peft_config), expected) == []
    callbacks = [StreamingCallback(**WIDER)]
    found = run(own, tmp_path / "b", peft_config=peft_config, callbacks=callbacks)
    assert apart(found, expected) == []
