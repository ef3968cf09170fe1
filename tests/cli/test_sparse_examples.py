"""The recipes of sparse training in examples/ run as they stand, but for the size of the model."""

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from openwafer.training.session import load_config
from openwafer.training.sparsity.options import SparsityGroup
from tests.cli.command import EXAMPLES, Done, run_command, settings
from tests.cli.test_examples import make_base_model
from tests.tables import case

pytestmark = pytest.mark.usefixtures("in_examples")
SIZE = "model={hidden_size: 32, num_layers: 1, num_heads: 2}"
# The same by the names of the transformers library.
SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
# What makes masks change behind the first step.
EVERY_STEP = "sparsity.update={freq: 1}"
TINY = {
    "sparse-static.yaml": (SIZE,),
    "sparse-rigl.yaml": (SIZE, EVERY_STEP),
    "sparse-wide.yaml": (SIZE, EVERY_STEP),
    "sparse-parallel.yaml": (
        *(f"model.kwargs.{name}={value}" for name, value in SIZES.items()),
        EVERY_STEP,
    ),
    "sparse-mupar.yaml": (
        *(f"model.config.{name}={value}" for name, value in SIZES.items()),
        "base={hidden_size: 16, intermediate_size: 24, num_attention_heads: 1}",
    ),
    "sparse-gmp.yaml": (
        SIZE,
        EVERY_STEP,
        "sparsity.sparsity={type: polynomial, final: 0.9, end: 2}",
    ),
    "spdf-variable.yaml": (SIZE, "sparsity.update.steps=[1]"),
}
OF_SAVED_MODELS = {"sparse-imp.yaml": (EVERY_STEP,), "spdf-fine-tune.yaml": ()}


def run(name: str, folder: Path, *values: str) -> Done:
    """Two steps of a recipe on a small corpus."""
    texts = folder / "corpus"
    if not texts.exists():
        texts.mkdir()
        for number in range(8):
            (texts / f"{number}.txt").write_text(f"the quick brown fox number {number} " * 40)
    small = (
        f"folder={folder}",
        f"data.source.paths=[{texts}]",
        "batch={size: 2, sequence_length: 16}",
        "steps=2",
    )
    return run_command("train", EXAMPLES / name, *settings((*small, *values)))


def has_trained(done: Done) -> bool:
    return done.err == "" and re.search(r"^done: 2 steps, loss", done.out, re.MULTILINE) is not None


# Of others, what they ask for is trained in tests of sessions.
@pytest.mark.parametrize("name", [case(n, by_default=i == 0) for i, n in enumerate(TINY)])
def test_a_sparse_recipe_trains(name: str, tmp_path: Path) -> None:
    assert has_trained(run(name, tmp_path, *TINY[name], "data.tokenizer.vocab_size=300"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [case(name, by_default=name == "spdf-fine-tune.yaml") for name in OF_SAVED_MODELS]
)
def test_a_sparse_recipe_of_a_saved_model_trains(name: str, tmp_path: Path) -> None:
    make_base_model(tmp_path / "base")
    values = (f"model.path={tmp_path / 'base'}", *OF_SAVED_MODELS[name])
    assert has_trained(run(name, tmp_path, *values))


@pytest.mark.slow
def test_what_was_trained_sparse_is_fine_tuned_dense(tmp_path: Path) -> None:
    vocabulary = "data.tokenizer.vocab_size=300"
    assert has_trained(run("sparse-static.yaml", tmp_path, SIZE, vocabulary))
    exported = tmp_path / "exported"
    assert run_command("export", tmp_path / "sparse-static", exported).code == 0
    assert has_trained(run("spdf-fine-tune.yaml", tmp_path, f"model.path={exported}"))
    run_command("export", tmp_path / "spdf-fine-tune", tmp_path / "tuned")
    name = "model.layers.0.mlp.up_proj.weight"
    before, after = (
        load_file(folder / "model.safetensors")[name].count_nonzero()
        for folder in (exported, tmp_path / "tuned")
    )
    assert before == after // 4 > 0


def test_the_wide_recipe_keeps_as_many_weights_as_a_dense_model_of_half_its_widths() -> None:
    wide = load_config(EXAMPLES / "sparse-wide.yaml")
    dense = load_config(EXAMPLES / "small.yaml")
    assert isinstance(wide.sparsity, SparsityGroup)
    assert wide.sparsity.sparsity == 1 - 1 / 2**2
    sizes = ("hidden_size", "num_heads", "mlp_units")
    for size in sizes:
        assert getattr(wide.model, size) == 2 * getattr(dense.model, size)


def test_every_sparse_recipe_is_run_here_and_told_of() -> None:
    found = {path.name for path in EXAMPLES.glob("sp*.yaml")}
    assert found == {*TINY, *OF_SAVED_MODELS}
    guide = (EXAMPLES.parent / "docs/guide/sparse.md").read_text()
    assert [name for name in found if f"`{name}`" not in guide] == []
