"""The Model Zoo's trainer, from its YAML: equal bits to a plain loop, resumed ones included."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.frontends.model_zoo.trainer import Trainer
from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.present import lr_scheduler as lrs
from tests.training.frontends.zoo_runs import (
    HERE,
    RUN,
    WIDTH,
    Kept,
    KilledError,
    Net,
    batches,
    changed,
    losses,
    train,
    weights,
)

EVALUATED = {"data_processor": f"{HERE}.batches", "batch_size": 6}
DEVICE_MEMORY = "120KiB"


@pytest.fixture(autouse=True)
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_DEVICE_MEMORY", DEVICE_MEMORY)
    list(losses())


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def plain_losses(num_steps: int) -> tuple[list[float], list[Tensor]]:
    """Of a loop of torch, that draws what the trainer draws."""
    cstorch.backend("CPU")
    torch.manual_seed(1)
    model = Net(WIDTH)
    decayed = [p for n, p in model.named_parameters() if n.startswith("layers") and "bias" not in n]
    others = [p for p in model.parameters() if all(p is not d for d in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = cstorch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95))
    parts: list[Any] = [
        lrs.LinearLR(optimizer, 0.0, 0.01, 2),
        lrs.CosineDecayLR(optimizer, 0.01, 0.001, 8),
    ]
    schedule, loader, found = (
        lrs.SequentialLR(optimizer, parts, [2]),
        batches(4, True),
        list[float](),
    )
    epochs = (batch for _ in range(num_steps) for batch in loader)
    for _, batch in zip(range(num_steps), epochs, strict=False):
        loss = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_([*decayed, *others], 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        found.append(loss.item())
    return found, [weight.detach() for weight in model.parameters()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Tensor], dict[int, float]]:
    """Weights and losses of a run that nothing has stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENWAFER_DEVICE_MEMORY", DEVICE_MEMORY)
        list(losses())
        (trainer,) = train(tmp_path_factory.mktemp("whole"), RUN)
    return weights(trainer), dict(losses())


def test_a_run_has_the_bits_of_a_plain_loop(whole: tuple[list[Tensor], dict[int, float]]) -> None:
    found, told = whole
    expected, plain = plain_losses(6)
    assert list(told.items()) == list(enumerate(expected, 1))
    assert equal(found, plain)


def test_a_model_by_mup_says_what_multiplies_its_rates_and_tells_the_loggers(
    tmp_path: Path,
) -> None:
    model = {"name": f"{HERE}.Widened", "hidden_size": WIDTH}
    (trainer,) = train(tmp_path, changed(init__model=model, init__loop__max_steps=2))
    told = [name for step, name, _ in Kept.told if step == 1]
    assert "train/norm" in told
    assert trainer.optimizer is not None
    groups = [
        (group["adjust_learning_rate"], len(group["params"]), round(group["lr"], 9))
        for group in trainer.optimizer.param_groups
    ]
    assert sorted(groups) == [(0.25, 5, 0.0025), (0.5, 1, 0.005), (1.0, 1, 0.01), (1.0, 3, 0.01)]


def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    tmp_path: Path, whole: tuple[list[Tensor], dict[int, float]]
) -> None:
    expected_weights, expected = whole
    with pytest.raises(KilledError, match="step 5"):
        train(tmp_path / "two", changed(init__callbacks=[{f"{HERE}.StopAt": {"step": 5}}]))
    list(losses())
    (found,) = train(tmp_path / "two", RUN)
    assert dict(losses()) == {step: expected[step] for step in (5, 6)}
    assert equal(weights(found), expected_weights)


def test_evaluations_between_change_no_bit(
    tmp_path: Path, whole: tuple[list[Tensor], dict[int, float]]
) -> None:
    (found,) = train(tmp_path / "found", changed(fit__val_dataloader=EVALUATED))
    assert equal(weights(found), whole[0])
    assert [step for step, _ in losses("validate_0/loss")] == [4, 6]


def test_evaluation_has_the_loss_of_the_checkpoint(tmp_path: Path) -> None:
    run = changed(fit__val_dataloader=EVALUATED, validate={"val_dataloader": EVALUATED})
    train(tmp_path, run)
    _, last = list(losses("validate_0/loss"))
    train(tmp_path, run, command="validate")
    assert list(losses("validate_0/loss")) == [last]


@pytest.mark.slow
def test_all_checkpoints_are_evaluated_on_all_loaders(tmp_path: Path) -> None:
    run = changed(validate_all={"val_dataloaders": [EVALUATED, EVALUATED]})
    train(tmp_path, run)
    list(losses())
    (trainer,) = train(tmp_path, run, command="validate_all")
    assert [step for step, _ in losses("validate_1/loss")] == [2, 4, 6]
    assert trainer.checkpoint.found()[-1].name == "checkpoint_6.pt"


def test_a_phase_goes_on_from_the_one_before(tmp_path: Path) -> None:
    second = changed(init__loop={"num_steps": 2}, init__checkpoint__steps=1)
    _, found = train(tmp_path, changed(init__loop={"num_steps": 3}), second)
    assert [step for step, _ in losses()] == [1, 2, 3, 4, 5]
    assert found.global_step == 5


def test_gradients_of_several_batches_make_one_update(tmp_path: Path) -> None:
    def run(size: int, num: int) -> dict[str, Any]:
        loader = {"data_processor": f"{HERE}.batches", "batch_size": size}
        loop = {"num_steps": 2, "grad_accum_steps": num}
        return changed(init__loop=loop, fit__train_dataloader=loader, init__model__num_layers=0)

    (found,), (plain,) = train(tmp_path / "a", run(3, 2)), train(tmp_path / "b", run(6, 1))
    for one, other in zip(weights(found), weights(plain), strict=True):
        torch.testing.assert_close(one, other)
    assert found.global_step == 2


def test_checkpoints_are_kept_loaded_and_saved_in_part(tmp_path: Path) -> None:
    parts = [{"KeepNCheckpoints": {"n": 1}}, {"SaveCheckpointState": {"k": 3}}]
    run = changed(init__callbacks=parts, init__checkpoint__save_initial_checkpoint=True)
    train(tmp_path, run)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        "checkpoint_6.pt",
        "model_checkpoint_4.pt",
    ]
    again = changed(init__callbacks=[{"LoadCheckpointStates": {"load_checkpoint_states": "model"}}])
    (found,) = train(tmp_path, {**again, "init": {**again["init"], "loop": {"num_steps": 1}}})
    assert found.global_step == 1


def test_norms_rates_and_shares_of_zeros_are_told(tmp_path: Path) -> None:
    named = ["ComputeNorm", "CountParams", "LogSparsity", "SavePerformanceData"]
    run = changed(
        init__callbacks=[{name: {}} for name in named],
        init__sparsity={"sparsity": 0.5, "algorithm": "static"},
    )
    train(tmp_path, changed(init=run["init"]))
    told = {name for _, name, _ in Kept.told}
    assert {"train/lr/0", "train/lr/1", "train/avg_samples_per_sec"} <= told
    assert {"train/model_wise_params_norm", "train/per_layer_grad_norm/layer_0"} <= told
    assert all(v == pytest.approx(0.5, abs=0.01) for _, n, v in Kept.told if n.endswith("/actual"))


def test_a_trainer_of_python_is_the_one_of_the_file(tmp_path: Path) -> None:
    (written,) = train(tmp_path / "a", changed(init__schedulers=None, init__precision=None))
    loader = cstorch.utils.data.DataLoader(batches, 4, shuffle=True)
    made = Trainer(
        "CPU",
        model_dir=tmp_path / "b",
        model=lambda: Net(WIDTH),
        optimizer=lambda model: cstorch.optim.AdamW(model.parameters(), lr=0.1),
        seed=1,
    )
    made.fit(loader)
    assert (made.global_step, written.global_step) == (3, 6)
    assert not list((tmp_path / "b").iterdir())
