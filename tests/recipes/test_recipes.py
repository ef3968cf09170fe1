"""Each recipe trains on its data and reaches its loss; what is wrong with one is told in words."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.recipes import Recipe, all_recipes, find_recipe
from openwafer.recipes.recipe import RECIPE_FILE, read_recipe
from openwafer.training.session import load_config
from tests.cli.command import Done, run_command, settings
from tests.recipes.recipes_table import TABLE, table
from tests.tables import case

# What takes the place of values too large for a test that runs every time.
SMALLER = (
    "steps=2",
    "data.source.paths=[json/*.py]",
    "data.validation_share=0.3",
    "data.folder=null",
    "batch={size: 2, sequence_length: 16}",
    "streaming.mode=streamed",
    "evaluate.batches=1",
    "trace_steps=[]",
)
GPT2 = "model.config={n_embd: 16, n_layer: 1, n_head: 2, n_positions: 32}"
LAYER = "hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2"
LLAMA = f"intermediate_size: 24, {LAYER}"
T5 = "d_model: 16, d_kv: 8, d_ff: 24, num_layers: 1, num_heads: 2, decoder_start_token_id: 0"
BTLM = "hidden_size: 16, mlp_size: 24, num_layers: 1, num_heads: 2"
ROUTED = "hidden_size: 16, num_heads: 2"
LONG = "hidden_size: 16, num_layers: 1, num_heads: 2, context_length: 32"
# What each of these does with samples is another thing.
BY_DEFAULT = ("llama", "t5")
WITHOUT_TEXT = ("bert", "long", "t5")
SIZES = {
    "btlm": (
        f"model.kwargs={{vocab_size: 300, {BTLM}}}",
        "base={hidden_size: 8, mlp_size: 12, num_heads: 1}",
    ),
    "bert": (f"model.config={{{LLAMA}}}",),
    "gpt": (GPT2, "base={n_embd: 8, n_head: 1}"),
    "depths": (f"model.kwargs={{vocab_size: 300, {ROUTED}, num_layers: 2}}",),
    "halting": (f"model.kwargs={{vocab_size: 300, {ROUTED}, most_calls: 2}}",),
    "bloom": ("model.config={hidden_size: 16, n_layer: 1, n_head: 2}",),
    "falcon": (f"model.config={{{LAYER}, multi_query: true}}",),
    "gptj": ("model.config={n_embd: 16, n_layer: 1, n_head: 2, rotary_dim: 4, n_positions: 32}",),
    "llama": (f"model.config={{{LLAMA}}}",),
    "mistral": (f"model.config={{{LLAMA}, num_key_value_heads: 1, sliding_window: 8}}",),
    "long": (f"model={{kind: reference-gpt, {LONG}}}",),
    "mixtral": (f"model.config={{{LLAMA}, num_key_value_heads: 1, num_local_experts: 2}}",),
    "mpt": ("model.config={d_model: 16, n_layers: 1, n_heads: 2, max_seq_len: 32}",),
    "neox": (f"model.config={{{LLAMA}}}",),
    "starcoder": (GPT2,),
    "t5": (f"model.config={{{T5}}}", "data.span_corruption.mean_length=8"),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to `runs` of the working directory."""
    monkeypatch.chdir(tmp_path)


def run_small(name: str, *values: str) -> Done:
    vocabulary = "data.tokenizer.vocab_size=300"
    return run_command("recipe", "run", name, *settings([*SMALLER, vocabulary, *values]))


@pytest.mark.parametrize("name", [case(name, by_default=name in BY_DEFAULT) for name in SIZES])
def test_a_recipe_trains_two_steps_on_less(name: str) -> None:
    done = run_small(name, *SIZES[name])
    assert (done.code, done.err) == (0, "")
    assert re.search(r"held-out documents \d\.\d+; with other settings than the rec", done.out)
    assert ("what it writes:\ndef " in done.out) == (name not in WITHOUT_TEXT)
    assert ("openwafer generate" in done.out) == (name not in WITHOUT_TEXT)
    assert Path(f"runs/{name}/config.yaml").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", [recipe.name for recipe in all_recipes()])
def test_each_recipe_reaches_its_loss(name: str) -> None:
    missing = [package for package in find_recipe(name).known.needs if find_spec(package) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed, which has the recipe's data")
    done = run_command("recipe", "run", name)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"held-out documents \d\.\d+; the recipe's \d", done.out)
    assert (f"{name} (held out)" in done.out) == bool(find_recipe(name).known.smaller)


def test_all_are_listed_with_their_losses_and_shown_with_their_configs() -> None:
    listed = run_command("recipe", "list").out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [r.name for r in all_recipes()]
    shown = run_command("recipe", "show", "llama").out
    assert shown.startswith("# llama\n")
    assert "architecture: llama" in shown


def test_the_guide_has_all_recipes() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "write it with scripts/recipes_page.py"


@pytest.mark.parametrize("recipe", all_recipes(), ids=lambda recipe: recipe.name)
def test_configs_read_what_data_steps_make_and_nothing_else(recipe: Recipe) -> None:
    assert load_config(recipe.config).evaluate is not None
    assert recipe.page.startswith(f"# {recipe.name}\n")


def test_an_unknown_name_is_told_with_the_closest() -> None:
    with pytest.raises(OpenwaferError, match="no recipe is called 'lama'"):
        find_recipe("lama")


def test_a_missing_package_is_told_before_anything_is_made(tmp_path: Path) -> None:
    recipe = find_recipe("llama")
    known = replace(recipe.known, needs=("no_such_package",))
    with pytest.raises(OpenwaferError, match="texts of the package no_such_package, which is not"):
        replace(recipe, known=known).require_packages()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_data_step_is_taken_for_whatever_is_read_of_it(is_absolute: bool) -> None:
    recipe = find_recipe("instruct")
    needing = replace(recipe, known=replace(recipe.known, needs=("no_such_package",)))
    read = recipe.data_folder / "tokenizer"
    with pytest.raises(OpenwaferError, match="texts of the package no_such_package"):
        needing.make_data([str(read.absolute() if is_absolute else read)])
    needing.make_data(["texts/of/my/own"])


def test_a_mistake_of_a_file_has_its_place(tmp_path: Path) -> None:
    text = (find_recipe("llama").folder / RECIPE_FILE).read_text("utf-8")
    (tmp_path / RECIPE_FILE).write_text(text.replace("version: 1", "version: 2"), "utf-8")
    with pytest.raises(OpenwaferError, match=r"version: 2; this program reads openwafer-recipe 1"):
        read_recipe(tmp_path)
