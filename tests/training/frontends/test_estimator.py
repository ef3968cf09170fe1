"""An estimator has the bits of the plain loop, also when it was cut off and goes on."""

from pathlib import Path

import pytest
import torch

from openwafer.training.frontends.estimator.cs_estimator import (
    CerebrasEstimator,
    EstimatorSpec,
    EvalSpec,
    RunConfig,
    SessionRunHook,
    StopAtStepHook,
    TrainSpec,
    train_and_evaluate,
)
from openwafer.training.models.reference_gpt import ReferenceGpt
from openwafer.training.plan_record import Mode
from tests.tables import case
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


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain.trained()


@pytest.fixture(scope="module")
def losses() -> Losses:
    """What hooks of the trained one have seen."""
    return Losses()


@pytest.fixture(scope="module")
def trained(losses: Losses, tmp_path_factory: pytest.TempPathFactory) -> CerebrasEstimator:
    torch.manual_seed(0)
    return estimator(tmp_path_factory.mktemp("trained")).train(input_fn, hooks=[losses])


def test_losses_and_weights_are_those_of_the_plain_loop(
    trained: CerebrasEstimator, losses: Losses, plain: Plain
) -> None:
    assert losses.seen == plain.losses
    assert differing(weights_of(trained, list(plain.weights)), plain.weights) == []


def test_a_run_that_was_cut_off_goes_on_with_the_bits_of_an_unbroken_one(
    tmp_path: Path, plain: Plain
) -> None:
    losses = Losses(dies_behind=5)
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        estimator(tmp_path).train(input_fn, hooks=[losses], max_steps=8)
    torch.manual_seed(77)
    found = estimator(tmp_path).train(input_fn, hooks=[after := Losses()], max_steps=8)
    assert after.seen == plain.losses[3:]
    assert differing(weights_of(found, list(plain.weights)), plain.weights) == []


def test_evaluation_and_predictions_are_those_of_the_trained_model(
    trained: CerebrasEstimator,
) -> None:
    model = ReferenceGpt(CONFIG).eval()
    model.load_state_dict(weights_of(trained, list(model.state_dict())))
    with torch.no_grad():
        plain = [model(batch, labels=batch) for batch in BATCHES[:3]]
    given = trained.predict(lambda: BATCHES[:3])
    results = trained.evaluate(lambda: zip(BATCHES, BATCHES, strict=True), steps=3)
    assert results["loss"] == sum(one.loss.double() for one in plain) / 3
    assert results["global_step"] == 8
    guesses = torch.cat([one.logits.argmax(-1) for one in plain])
    assert results["right"] == (guesses == torch.cat(BATCHES[:3])).double().mean()
    assert [one["tokens"].tolist() for one in given] == guesses.tolist()


def test_training_ends_at_max_steps_and_goes_on_by_steps(tmp_path: Path) -> None:
    found = estimator(tmp_path)
    steps = [
        int(found.train(input_fn, **asked).get_variable_value("global_step"))  # type: ignore[arg-type]
        for asked in ({"max_steps": 2}, {"max_steps": 2}, {"steps": 3}, {"max_steps": 5})
    ]
    assert steps == [2, 2, 5, 5]


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


class Ends(SessionRunHook):
    """Counts batches, and ends of runs."""

    def __init__(self) -> None:
        self.num_batches = self.num_ends = 0

    def after_run(self, *_: object) -> None:
        self.num_batches += 1

    def end(self, session: object) -> None:
        self.num_ends += 1


def test_predictions_end_with_the_batch_of_the_last_sample_and_tell_hooks(tmp_path: Path) -> None:
    found = estimator(tmp_path).train(input_fn, steps=1)
    size = len(BATCHES[0])
    given = list(found.predict(lambda: BATCHES[:3], hooks=[hook := Ends()], num_samples=size))
    assert (len(given), hook.num_batches, hook.num_ends) == (size, 1, 1)


class Listener:
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def begin(self) -> None:
        self.told.append("begin")

    def after_save(self, session: object, global_step_value: int) -> None:
        self.told.append(global_step_value)

    def end(self, session: object, global_step_value: int) -> None:
        self.told.append(("end", global_step_value))


def test_listeners_hear_of_the_run_and_its_checkpoints(tmp_path: Path) -> None:
    estimator(tmp_path).train(input_fn, steps=4, saving_listeners=[listener := Listener()])
    assert listener.told == ["begin", 0, 3, 4, ("end", 4)]


def two_optimizers(features: torch.Tensor, labels: torch.Tensor, mode: str) -> EstimatorSpec:
    """One weight has states of the same name in two optimizers."""
    model = torch.nn.Linear(4, 4)
    loss = (model(features) - labels).square().mean()
    momentum = torch.optim.SGD([model.weight], lr=0.1, momentum=0.9)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    again = torch.optim.SGD([model.weight], lr=0.01, momentum=0.5)
    return EstimatorSpec(mode, loss=loss, train_op=[momentum, adam, again])


def test_states_of_a_weight_in_several_optimizers_stay_apart(tmp_path: Path) -> None:
    rows = [torch.randn(2, 4) for _ in range(6)]
    whole, parts = (
        CerebrasEstimator(two_optimizers, tmp_path / name, config=RunConfig(tf_random_seed=1))
        for name in ("whole", "parts")
    )
    whole.train(lambda: zip(rows, rows, strict=True))
    for some in (rows[:3], rows[3:]):
        parts.train(lambda some=some: zip(some, some, strict=True))
    names = whole.get_variable_names()
    assert {f"linear.weight/{s}momentum_buffer" for s in ("", "2/")} <= set(names)
    for name in names:
        if not name.startswith("random"):
            assert (whole.get_variable_value(name) == parts.get_variable_value(name)).all(), name


@pytest.mark.parametrize(
    ("throttle_secs", "steps"), [(0, [3, 6, 8]), case(600, [3, 8], by_default=False)]
)
def test_checkpoints_are_evaluated_on_the_way_and_training_has_its_bits(
    throttle_secs: float, steps: list[int], tmp_path: Path, plain: Plain
) -> None:
    found, seen = estimator(tmp_path), list[int]()

    def held_out() -> list[tuple[torch.Tensor, torch.Tensor]]:
        seen.append(int(found.get_variable_value("global_step")))
        torch.rand(())
        return [(batch, batch) for batch in BATCHES[:2]]

    torch.manual_seed(0)
    spec = EvalSpec(held_out, throttle_secs=throttle_secs)
    results, _ = train_and_evaluate(found, TrainSpec(input_fn, max_steps=8), spec)
    assert seen == steps
    assert differing(weights_of(found, list(plain.weights)), plain.weights) == []
    assert results == found.evaluate(held_out)


def test_labels_of_int32_are_long_as_losses_of_torch_want_them(tmp_path: Path) -> None:
    def model_fn(features: torch.Tensor, labels: torch.Tensor, mode: str) -> EstimatorSpec:
        head = torch.nn.Linear(4, 4)
        loss = torch.nn.functional.cross_entropy(head(features), labels)
        return EstimatorSpec(mode, loss=loss, train_op=torch.optim.SGD(head.parameters(), lr=0.1))

    # tf.data gives such integers.
    batch = (torch.ones(2, 4), torch.ones(2, dtype=torch.int32))
    assert CerebrasEstimator(model_fn, tmp_path).train(lambda: [batch]).latest_checkpoint()
