"""An estimator has the bits of the plain loop, also when it was cut off and goes on."""

from pathlib import Path

import pytest
import torch

from openwafer.training.frontends.estimator.cs_estimator import StopAtStepHook
from openwafer.training.models.reference_gpt import ReferenceGpt
from openwafer.training.plan_record import Mode
from tests.training.frontends.estimator_scripts import (
    BATCHES,
    Losses,
    Plain,
    estimator,
    input_fn,
    weights_of,
)
from tests.training.stream.both_loops import differing
from tests.training.stream.small_gpt import CONFIG


def test_losses_and_weights_are_those_of_the_plain_loop(tmp_path: Path) -> None:
    plain, losses = Plain.trained(), Losses()
    torch.manual_seed(0)
    found = estimator(tmp_path).train(input_fn, hooks=[losses])
    assert losses.seen == plain.losses
    assert differing(weights_of(found, list(plain.weights)), plain.weights) == []


def test_a_run_that_was_cut_off_goes_on_with_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    plain, losses = Plain.trained(), Losses(dies_behind=5)
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        estimator(tmp_path).train(input_fn, hooks=[losses], max_steps=8)
    torch.manual_seed(77)
    found = estimator(tmp_path).train(input_fn, hooks=[after := Losses()], max_steps=8)
    assert after.seen == plain.losses[3:]
    assert differing(weights_of(found, list(plain.weights)), plain.weights) == []


def test_evaluation_and_predictions_are_those_of_the_trained_model(tmp_path: Path) -> None:
    found = estimator(tmp_path).train(input_fn)
    model = ReferenceGpt(CONFIG).eval()
    model.load_state_dict(weights_of(found, list(model.state_dict())))
    with torch.no_grad():
        plain = [model(batch, labels=batch) for batch in BATCHES[:3]]
    given = found.predict(lambda: BATCHES[:3])
    results = found.evaluate(lambda: zip(BATCHES, BATCHES, strict=True), steps=3)
    assert results["loss"] == sum(one.loss.double() for one in plain) / 3
    assert results["global_step"] == 8
    guesses = torch.cat([one.logits.argmax(-1) for one in plain])
    assert results["right"] == (guesses == torch.cat(BATCHES[:3])).double().mean()
    assert [one["tokens"].tolist() for one in given] == guesses.tolist()


def test_training_ends_at_max_steps_and_goes_on_by_steps(tmp_path: Path) -> None:
    found = estimator(tmp_path)
    steps = [
        int(found.train(input_fn, **asked).get_variable_value("global_step"))  # type: ignore[arg-type]
        for asked in ({"max_steps": 2}, {"max_steps": 2}, {"steps": 3}, {"max_steps": 6}, {})
    ]
    assert steps == [2, 2, 5, 6, 14]


def test_no_batch_is_asked_for_behind_the_step_at_which_a_hook_ends_the_run(tmp_path: Path) -> None:
    rest = iter(BATCHES)
    hook = StopAtStepHook(num_steps=2)
    found = estimator(tmp_path).train(lambda: zip(rest, BATCHES, strict=False), hooks=[hook])
    assert found.get_variable_value("global_step") == 2
    assert next(rest) is BATCHES[2]


def test_compilation_plans_and_trains_nothing(tmp_path: Path) -> None:
    found = estimator(tmp_path)
    before = torch.get_rng_state()
    plan = found.compile(input_fn)
    assert plan is not None
    assert plan.mode is Mode.STREAMED
    assert found.compile(input_fn, validate_only=True) is None
    assert found.latest_checkpoint() is None
    assert torch.equal(torch.get_rng_state(), before)
