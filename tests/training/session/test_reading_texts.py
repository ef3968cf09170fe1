"""Texts read with the keys and values of their tokens: those taken back, and those without room."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import Sampling, Session, load_config
from openwafer.training.session.constrained import can_become_python
from openwafer.training.session.opened_model import (
    OpenedModel,
    Reading,
    generate,
    room_beside_weights,
)
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_model import opened_to_read
from openwafer.training.session.saved_run import find_newest
from openwafer.training.store import StoreOptions
from openwafer.training.stream.assemble import Planned
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config

BACK = ([3, 1, 4, 1], [3, 1, 9])
PROMPTS = ("3 squared", "5", "7 squared is")


@pytest.fixture(scope="module")
def opened(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedModel]:
    config = replace(tiny_config(data, tmp_path_factory.mktemp("texts")), model=GPT, steps=1)
    run = Session(config, console=quiet()).train().folder
    folder = RunFolder(run)
    saved = find_newest(folder)
    assert saved is not None
    config = load_config(run / "config.yaml")
    with opened_to_read(config, folder, saved, lambda text: None, StoreOptions()) as model:
        model.model.eval()
        yield model


def with_room(opened: OpenedModel, room_bytes: int) -> OpenedModel:
    """The model on a device that has so much beside the weights."""

    def planned(budget: int) -> Planned:
        given = replace(opened.planned.given, device_memory_bytes=budget)
        return replace(opened.planned, given=given)

    lacking = room_beside_weights(planned(0))
    assert lacking is not None
    return replace(opened, planned=planned(room_bytes - lacking))


def after(opened: OpenedModel, *texts: Sequence[int]) -> torch.Tensor:
    """Logits behind the last of the texts, which take each other's place."""
    reading = Reading(opened, ())
    return [reading.next_logits({0: text}, 4)[0] for text in texts][-1]


def test_what_follows_tokens_taken_back_is_what_follows_a_new_text(opened: OpenedModel) -> None:
    found = after(opened, *BACK)
    assert torch.allclose(found, after(opened, BACK[1]), atol=1e-5)
    assert not torch.allclose(found, after(opened, [3, 2, 9]), atol=1e-5)


def test_tokens_in_front_of_those_taken_back_are_not_read_again(opened: OpenedModel) -> None:
    read: list[int] = []
    hook = opened.model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    after(opened, *BACK)
    hook.remove()
    assert read == [4, 1]


def test_texts_without_room_side_by_side_are_written_one_after_the_other(
    opened: OpenedModel,
) -> None:
    sampling = Sampling(6, seed=1)
    both = generate(opened, PROMPTS, sampling)
    # 2 keys and values of a layer and 32-bit number, for as many tokens as the longest text.
    tight = generate(with_room(opened, 6000), PROMPTS, sampling)
    assert tight.texts == both.texts
    assert len(tight.pass_seconds) > len(both.pass_seconds)


def test_a_text_whose_keys_and_values_outgrow_the_device_is_refused(opened: OpenedModel) -> None:
    wanted = r"keys and values of a text will take [\d,]+ bytes, and the device has 100 bytes"
    with pytest.raises(OpenwaferError, match=wanted):
        generate(with_room(opened, 100), PROMPTS, Sampling(6))


def test_a_prompt_that_breaks_the_constraint_is_told(opened: OpenedModel) -> None:
    with pytest.raises(OpenwaferError, match=r"no text that begins with 'x = 1\]' meets"):
        generate(opened, ["x = 1]"], Sampling(6, constraint=can_become_python))
