"""Recipes beside other libraries: the same model has the same losses on the same samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler

from openwafer.cli.recipe import make_data
from openwafer.recipes import find_recipe
from openwafer.training.data import Batch
from openwafer.training.labels import IGNORED_LABEL
from openwafer.training.metrics import load_run
from openwafer.training.models.build import build, with_vocab_size
from openwafer.training.session import Session
from openwafer.training.session.building import prepare_data
from openwafer.training.session.run_folder import RunFolder

pytest.importorskip("accelerate", reason="the Trainer of transformers asks for accelerate")

import transformers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STEPS, RATE = 8, 1e-3
SAME = (
    f"steps={STEPS}",
    f"optimizer={{learning_rate: {RATE}, weight_decay: 0}}",
    "schedule={name: constant, options: {num_warm_up_steps: 0}}",
    "evaluate=null",
    "trace_steps=[]",
)
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to `runs` of the working directory."""
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Ours:
    """A run of a recipe: its losses, what it began with, and its samples step by step."""

    losses: list[float]
    model: nn.Module
    batches: list[Batch]


def ours(name: str) -> Ours:
    recipe = find_recipe(name)
    if any(find_spec(package) is None for package in recipe.known.needs):
        pytest.skip("what the recipe's data are made of is not installed")
    make_data(recipe, SAME)
    session = Session(recipe.config, [*SAME, f"name={name}"])
    folder = session.train().folder
    losses = [row.loss for row in load_run(folder).metrics.rows]
    dataset = prepare_data(session.config, RunFolder(folder), lambda text: None)
    described = with_vocab_size(session.config.model, dataset.tokenizer.vocab_size)
    model = build(described, session.config.seed)
    return Ours(losses, model, [dataset.batch(step) for step in range(STEPS)])


def arguments(kind: Any, batch_size: int, **options: Any) -> Any:
    return kind(
        "trainer",
        per_device_train_batch_size=batch_size,
        max_steps=STEPS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        **options,
    )


def in_order(kind: Any, losses: list[float]) -> Any:
    """A trainer that takes samples in their order, and keeps the loss of each step."""

    class InOrder(kind):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            found = super().compute_loss(*args, **options)
            losses.append(float(found[0] if isinstance(found, tuple) else found))
            return found

    return InOrder


def of_trainer(model: nn.Module, rows: Rows, batch_size: int) -> list[float]:
    losses: list[float] = []
    trainer = in_order(transformers.Trainer, losses)(
        model=model,
        args=arguments(transformers.TrainingArguments, batch_size),
        train_dataset=rows,
        data_collator=transformers.default_data_collator,
    )
    trainer.train()
    return losses


def of_batches(batches: Sequence[Batch]) -> Rows:
    """Samples as a text model of the library takes them."""
    names = ("input_ids", "labels")
    return [
        {name: getattr(batch, name)[index] for name in names}
        for batch in batches
        for index in range(len(batch.input_ids))
    ]


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_losses_are_those_of_the_librarys_trainer(name: str) -> None:
    run = ours(name)
    found = of_trainer(run.model, of_batches(run.batches), len(run.batches[0].input_ids))
    assert run.losses == pytest.approx(found, abs=1e-5)


def with_image(tokenizer: Any, batch: Batch, index: int) -> dict[str, Any]:
    """An image of 8 x 8 pixels, and a text that begins with the library's tokens in its place."""
    assert batch.attention_mask is not None
    ids, labels, mask = (
        part[index] for part in (batch.input_ids, batch.labels, batch.attention_mask)
    )
    levels = [int(name.strip("<|>")) for name in tokenizer.convert_ids_to_tokens(ids[:64])]
    pixels = torch.tensor(levels).reshape(1, 8, 8) / 16

    def behind(part: Tensor, filling: int) -> Tensor:
        return torch.cat((torch.full((16,), filling), part[64:]))

    return {
        "input_ids": behind(ids, 320),
        "labels": behind(labels, IGNORED_LABEL),
        "attention_mask": behind(mask, 1),
        "pixel_values": pixels,
    }


def test_losses_of_images_and_texts_are_those_of_the_librarys_trainer() -> None:
    run = ours("llava")
    tokenizer = transformers.AutoTokenizer.from_pretrained("runs/recipe-data/llava/tokenizer")
    rows = [
        with_image(tokenizer, batch, index)
        for batch in run.batches
        for index in range(len(batch.input_ids))
    ]
    model = run.model.model
    assert isinstance(model, nn.Module)
    assert run.losses == pytest.approx(of_trainer(model, rows, 16), abs=1e-5)


def texts_of(tokenizer: Any, batch: Batch) -> list[tuple[str, str]]:
    """What each row reads and what it answers, as written."""
    assert batch.attention_mask is not None
    is_answer = batch.labels != IGNORED_LABEL
    is_read = batch.attention_mask.bool() & ~is_answer
    return [
        (tokenizer.decode(ids[read]), tokenizer.decode(ids[answer]))
        for ids, read, answer in zip(batch.input_ids, is_read, is_answer, strict=True)
    ]


def of_trl(folder: str, tokenizer: Any, rows: Rows) -> list[float]:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    losses: list[float] = []
    trainer = in_order(trl.DPOTrainer, losses)(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder),
        args=arguments(trl.DPOConfig, 16, gradient_checkpointing=False),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    return losses


def test_losses_of_preferences_are_those_of_trls_trainer() -> None:
    run = ours("dpo")
    folder = "runs/recipe-data/dpo/policy"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=False)
    rows = [
        {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        for batch in run.batches
        for prompt, answers in texts_of(tokenizer, batch)
        for chosen, rejected, _ in [answers.split(tokenizer.eos_token)]
    ]
    assert run.losses == pytest.approx(of_trl(folder, tokenizer, rows), abs=1e-5)


class Encoders(nn.Module):
    """Encoders of the library with the weights of a run, on questions and passages as texts."""

    def __init__(self, run: Any, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.num_tokens = run.questions.config.max_position_embeddings
        kinds = {
            "questions": transformers.DPRQuestionEncoder,
            "passages": transformers.DPRContextEncoder,
        }
        for name, kind in kinds.items():
            encoder = kind(run.questions.config)
            encoder.load_state_dict(run.get_submodule(name).state_dict())
            self.add_module(name, encoder)

    def forward(self, texts: list[tuple[str, str]]) -> Tensor:
        sides = zip(self.children(), zip(*texts, strict=True), strict=True)
        vectors = [encoder(**self._padded(side)).pooler_output for encoder, side in sides]
        return nn.functional.cross_entropy(vectors[0] @ vectors[1].T, torch.arange(len(texts)))

    def _padded(self, side: tuple[str, ...]) -> Any:
        """As long as a sample: rows of another length are summed in another order."""
        length = {"padding": "max_length", "max_length": self.num_tokens}
        return self.tokenizer(list(side), **length, return_tensors="pt")


def of_loop(model: nn.Module, batches: Sequence[Any]) -> list[float]:
    """Losses of a plain loop over a model that returns its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0)
    losses = []
    for batch in batches:
        loss = model(batch)
        losses.append(float(loss))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses


def test_losses_of_retrieval_are_those_of_the_librarys_encoders() -> None:
    run = ours("dpr")
    folder = "runs/recipe-data/dpr/tokenizer"
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        folder, split_special_tokens=False, model_input_names=["input_ids", "attention_mask"]
    )
    tokenizer.pad_token = tokenizer.eos_token
    texts = [texts_of(tokenizer, batch) for batch in run.batches]
    assert run.losses == pytest.approx(of_loop(Encoders(run.model, tokenizer), texts), abs=1e-5)
