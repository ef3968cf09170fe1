"""What a run saves beside its arrays is read back as it was, or refused by the key at fault."""

import json

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session.run_state import BufferState, RunState, parse_run_state
from openwafer.training.stream.link.updates import UpdateCounts

STATE = RunState(
    steps_done=7,
    counts=UpdateCounts(7, {"w": 7}, {"w": 3}),
    loss_scale={"scale": 65536.0},
    data="fingerprint",
    seed=-(2**70),
    buffers={"mean": BufferState("float32", (1,), "AACAPw==")},
)


def as_read(text: str) -> RunState:
    return parse_run_state(json.loads(text))


def test_a_state_comes_back_from_json_as_it_was() -> None:
    assert as_read(json.dumps(STATE.to_json())) == STATE
    assert STATE.buffers["mean"].to_tensor() == torch.tensor([1.0])


def test_what_a_method_saves_stands_beside_the_state_under_its_own_name() -> None:
    """As the version before methods had a seam wrote it."""
    written = {**STATE.to_json(), "noise": [2.0, 3.0]}
    state = as_read(json.dumps(written))
    assert state.methods == {"noise": [2.0, 3.0]}
    assert json.loads(json.dumps(state.to_json())) == json.loads(json.dumps(written))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"steps_done": 7', '"steps_done": "7"', "steps_done: expected int, found str '7'"),
        ('"steps_done": 7', '"steps_done": -7', "steps_done: expected int >= 0, found int -7"),
        (
            '"num_averaged": {"w": 3}',
            '"num_averaged": 3',
            "expected an object, found int 3",
        ),
        ('"shape": [1]', '"shape": [-1]', "shape.*: expected int >= 0"),
        ('"seed"', '"seat"', "missing key 'seed'"),
        ('"version": 5', '"version": 1', "expected version 2 to 5, found 1"),
    ],
)
def test_a_state_of_another_form_is_refused_by_its_key(old: str, new: str, told: str) -> None:
    text = json.dumps(STATE.to_json())
    with pytest.raises(OpenwaferError, match=f"run-state.* is not what this program.*{told}"):
        as_read(text.replace(old, new))
