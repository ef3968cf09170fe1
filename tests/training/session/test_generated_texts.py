"""Several texts are written side by side, each as if it were the only one."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import Sampling, Session
from openwafer.training.session.opened_model import GeneratedTexts
from tests.tables import case
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config

# Of one token, of some, and of more than the 12 that a training sample has.
PROMPTS = ("3", "7 squared is", "5 squared is 25, cubed 125; 5 squared is 25, cubed 125; 5 s")
GREEDY = Sampling(max_new_tokens=4, temperature=0.0)
DRAWN = Sampling(max_new_tokens=4, temperature=1.0, top_k=40, seed=3)


@pytest.fixture(scope="module")
def run(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    config = replace(tiny_config(data, folder), model=GPT, steps=2)
    return Session(config, console=quiet()).train().folder


def written(run: Path, prompts: tuple[str, ...], sampling: Sampling, *sets: str) -> tuple[str, ...]:
    return Session(run, sets, console=quiet()).generate_all(prompts, sampling).texts


@pytest.fixture(scope="module")
def found(run: Path) -> GeneratedTexts:
    return Session(run, console=quiet()).generate_all(PROMPTS, GREEDY)


def test_texts_side_by_side_are_those_of_each_prompt_alone(
    run: Path, found: GeneratedTexts
) -> None:
    assert found.texts == tuple(written(run, (prompt,), GREEDY)[0] for prompt in PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["streaming.mode=resident", "streaming.store=disk"])
def test_texts_are_the_same_wherever_the_weights_are(run: Path, way: str) -> None:
    assert written(run, PROMPTS, DRAWN, way) == written(run, PROMPTS, DRAWN)


def test_a_pass_gives_each_text_a_token(found: GeneratedTexts) -> None:
    assert len(found.pass_seconds) <= GREEDY.max_new_tokens
    assert found.step == 2


def test_what_passes_read_from_disk_is_counted(run: Path, found: GeneratedTexts) -> None:
    small = ("streaming.store=disk", "streaming.host_memory=48KiB")
    read = Session(run, small, console=quiet()).generate_all(PROMPTS, GREEDY)
    assert read.weight_bytes == found.weight_bytes
    num_passes = len(read.pass_read_bytes)
    # The last reads ahead for one that does not come.
    assert 0 < sum(read.pass_read_bytes) < (num_passes + 1) * read.weight_bytes
    assert not any(found.pass_read_bytes)


@pytest.fixture(scope="module")
def smallest(run: Path) -> int:
    """Bytes that a training step takes of a device."""
    return Session(run, console=quiet()).plan().predicted_peak_bytes


@pytest.fixture
def tight(run: Path, smallest: int) -> Session:
    """A session whose device has the bytes of a training step and none more."""
    return Session(run, [f"device_memory={smallest}", "streaming.mode=streamed"], console=quiet())


def test_texts_are_written_within_the_device_budget(tight: Session, found: GeneratedTexts) -> None:
    assert tight.generate_all(PROMPTS, GREEDY).texts == found.texts


@pytest.mark.slow
def test_prompts_of_more_tokens_than_a_training_step_pass_in_groups(
    run: Path, tight: Session
) -> None:
    prompts = ("5 squared is 25",) * 16
    assert tight.generate_all(prompts, GREEDY).texts == written(run, prompts[:1], GREEDY) * 16


def test_no_prompt_gives_no_text(run: Path) -> None:
    assert written(run, (), GREEDY) == ()


def test_the_score_of_two_tokens_is_that_of_each_behind_what_comes_before(run: Path) -> None:
    both, first, second = Session(run, console=quiet()).score(
        [([3, 1], [4, 1]), ([3, 1], [4]), ([3, 1, 4], [1])]
    )
    alone = first.log_likelihood + second.log_likelihood
    assert both.log_likelihood == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("continuation", [([-1], [1]), case(([1], [1 << 20]), by_default=False)])
def test_tokens_of_no_vocabulary_have_no_score(
    run: Path, continuation: tuple[list[int], list[int]]
) -> None:
    with pytest.raises(OpenwaferError, match=r"continuation 1 has the token (-1|1048576)\n.*0 to"):
        Session(run, console=quiet()).score([([1], [1]), continuation])
