"""Every config in examples/ can be planned as it stands; the user's module there trains.

Those of sparse training have :mod:`tests.cli.test_sparse_examples`.
"""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers

from openwafer.config import load
from openwafer.training.data.tokenizer import train_tokenizer
from openwafer.training.models import TransformersModel, build
from openwafer.training.session import RunConfig
from tests.cli.command import EXAMPLES, Done, run_command, settings
from tests.tables import case

pytestmark = pytest.mark.usefixtures("in_examples")
LLAMA = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
# What takes the place of values too large for a test that runs every time.
SMALLER = {
    "small.yaml": (
        "batch.sequence_length=16",
        "model={hidden_size: 64, num_layers: 2, num_heads: 2}",
    ),
    "beyond-memory.yaml": (
        "model.config={num_hidden_layers: 2, hidden_size: 640, intermediate_size: 1728}",
        "batch.sequence_length=32",
    ),
    "mup.yaml": (
        "model.config={hidden_size: 32, intermediate_size: 64, num_attention_heads: 2}",
        "model.config.num_hidden_layers=1",
        "base={hidden_size: 16, intermediate_size: 32, num_attention_heads: 1}",
        "batch.sequence_length=16",
    ),
    "own-module.yaml": ("batch.sequence_length=16",),
}


def plan(name: str, *values: str) -> Done:
    return run_command("train", name, "--plan-only", *settings(values))


def make_base_model(folder: Path) -> None:
    model = build(TransformersModel("llama", config=LLAMA), seed=0)
    assert isinstance(model, transformers.PreTrainedModel)
    model.save_pretrained(folder)
    train_tokenizer(["a text", "another text"], 300).save(folder)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_is_read(path: Path) -> None:
    assert load(path, RunConfig).steps > 0


# The module of another example trains below.
@pytest.mark.parametrize(
    "name", [case(name, by_default=name == "beyond-memory.yaml") for name in SMALLER]
)
def test_an_example_can_be_planned(name: str) -> None:
    done = plan(name, *SMALLER[name])
    assert (done.code, done.err) == (0, "")
    assert "device peak" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLER)
def test_an_example_can_be_planned_at_its_size(name: str) -> None:
    assert plan(name).err == ""


@pytest.mark.slow
def test_further_training_of_a_saved_model_can_be_planned(tmp_path: Path) -> None:
    make_base_model(tmp_path)
    done = plan("continue-pretraining.yaml", f"model.path={tmp_path}", "batch.sequence_length=64")
    assert done.code == 0
    assert "device peak" in done.out


def test_every_example_is_planned_here_and_told_of() -> None:
    names = {path.name for path in EXAMPLES.glob("*.yaml")}
    sparse = {name for name in names if name.startswith("sp")}
    assert names - sparse == {*SMALLER, "continue-pretraining.yaml"}
    readme = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"({name})" not in readme] == []


def test_the_module_of_the_example_trains_while_its_weights_stream(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["the quick brown fox " * 40] * 8}), tmp_path / "c.parquet")
    values = (
        f"data.source.paths=[{tmp_path / 'c.parquet'}]",
        f"folder={tmp_path}",
        "data.tokenizer.vocab_size=300",
        "model.kwargs={vocab_size: 300, size: 16}",
        "batch={size: 2, sequence_length: 16}",
        "streaming.mode=streamed",
        "steps=2",
    )
    done = run_command("train", "own-module.yaml", *settings(values))
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^done: 2 steps, loss \d\.\d{4}, ", done.out, re.MULTILINE)
