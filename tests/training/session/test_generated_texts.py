"""Several texts are written side by side, each as if it were the only one."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.session import Sampling, Session
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config

# Of one token, of some, and of more than the 12 that a training sample has.
PROMPTS = ("3", "7 squared is", "5 squared is 25, cubed 125; 5 squared is 25, cubed 125; 5 s")
GREEDY = Sampling(max_new_tokens=8, temperature=0.0)
DRAWN = Sampling(max_new_tokens=8, temperature=1.0, top_k=40, seed=3)


@pytest.fixture(scope="module")
def run(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    config = replace(tiny_config(data, folder), model=GPT, steps=2)
    return Session(config, console=quiet()).train().folder


def written(run: Path, prompts: tuple[str, ...], sampling: Sampling, *sets: str) -> tuple[str, ...]:
    return Session(run, sets, console=quiet()).generate_all(prompts, sampling).texts


def test_texts_side_by_side_are_those_of_each_prompt_alone(run: Path) -> None:
    alone = tuple(written(run, (prompt,), GREEDY)[0] for prompt in PROMPTS)
    assert written(run, PROMPTS, GREEDY) == alone


@pytest.mark.parametrize("way", ["streaming.mode=resident", "streaming.store=disk"])
def test_texts_are_the_same_wherever_the_weights_are(run: Path, way: str) -> None:
    assert written(run, PROMPTS, DRAWN, way) == written(run, PROMPTS, DRAWN)


def test_a_pass_gives_each_text_a_token(run: Path) -> None:
    found = Session(run, console=quiet()).generate_all(PROMPTS, GREEDY)
    assert len(found.pass_seconds) <= GREEDY.max_new_tokens
    assert found.step == 2


def test_no_prompt_gives_no_text(run: Path) -> None:
    assert written(run, (), GREEDY) == ()
