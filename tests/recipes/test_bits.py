"""The model of each recipe, on the recipe's own samples, streams to the bits of the plain loop."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from openwafer.cli.recipe import make_data
from openwafer.recipes import all_recipes, find_recipe
from openwafer.recipes.recipe import DATA_STEP
from openwafer.training.data import Batch
from openwafer.training.models.build import build, with_vocab_size
from openwafer.training.plan_record import Activations
from openwafer.training.session.building import prepare_data
from openwafer.training.session.forward import forward_loss, model_inputs
from openwafer.training.session.run_folder import RunFolder
from tests.training.stream.both_loops import Run, differing_under

LIBRARY = "data.source.paths=[json/*.py, email/*.py]"
# The reference GPT, which `long` has too, of 85 million parameters.
LARGER = "larger"
STEPS = 2
# Tokens of a sample; of those an image has 64, and a pair of answers that is cut has no loss.
LENGTHS = {"dpo": 128, "dpr": 96, "llava": 96}


def run_of(name: str) -> Run:
    """A recipe's model and samples, two a step."""
    recipe = find_recipe(name)
    missing = [package for package in recipe.known.needs if find_spec(package) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed, which has the recipe's data")
    has_own_data = (recipe.folder / DATA_STEP).is_file()
    smaller = () if has_own_data else (LIBRARY, "data.folder=null")
    batch = f"batch={{size: 2, sequence_length: {LENGTHS.get(name, 16)}}}"
    config = make_data(recipe, [*smaller, batch])
    dataset = prepare_data(config, RunFolder(Path(name)), lambda text: None)
    described = with_vocab_size(config.model, dataset.tokenizer.vocab_size)
    batches = [dataset.batch(step) for step in range(STEPS)]

    def loss_of(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return forward_loss(model, model_inputs(model, batch))

    return Run(
        lambda: build(described, config.seed),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
        # A generator comes with the number of its batch as the seed: 1,000 a step.
        lambda generator: batches[generator.initial_seed() // 1000],
        loss_of,
        num_steps=STEPS,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [r.name for r in all_recipes() if r.name != LARGER])
def test_a_recipe_streams_to_the_bits_of_the_plain_loop(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert differing_under(run_of(name), Activations.RECOMPUTE) == []
