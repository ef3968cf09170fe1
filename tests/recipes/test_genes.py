"""Genes are written a letter a codon, and their recipe knows more than how frequent codons are."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from openwafer.cli.recipe import make_data
from openwafer.recipes import find_recipe
from openwafer.recipes.dna.data import LETTER_OF, letters_of
from openwafer.training.data import Split
from openwafer.training.labels import IGNORED_LABEL
from openwafer.training.session.building import prepare_data
from openwafer.training.session.run_folder import RunFolder


@pytest.mark.parametrize(
    ("bases", "letters"), [("TTTTTC", "AB"), ("ATGGGG", "j/"), ("TTA" * 2 + "GGA", "CC+")]
)
def test_a_letter_stands_for_each_codon(bases: str, letters: str) -> None:
    assert letters_of(bases) == letters


def test_no_two_codons_share_a_letter() -> None:
    assert len(set(LETTER_OF.values())) == 64


def entropy(tokens: Iterable[int]) -> float:
    """Nats a token of the best model that knows no more than how frequent each is."""
    counts = Counter(tokens)
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())


@pytest.mark.slow
def test_the_recipes_loss_is_below_what_frequencies_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyrodigal", reason="it has the recipe's data")
    monkeypatch.chdir(tmp_path)
    recipe = find_recipe("dna")
    config = make_data(recipe, [])
    dataset = prepare_data(config, RunFolder(tmp_path), print).for_split(Split.VALIDATION)
    assert config.evaluate is not None
    batches = zip(range(config.evaluate.batches), dataset.once(), strict=False)
    labels = torch.cat([batch.labels.flatten() for _, batch in batches])
    found = entropy(labels[labels != IGNORED_LABEL].tolist())
    assert recipe.known.figure.loss + recipe.known.figure.spread < found
