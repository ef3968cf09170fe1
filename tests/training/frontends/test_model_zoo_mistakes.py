"""What is wrong with a trainer's YAML is told with its place and the remedy."""

from pathlib import Path
from typing import Any

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText
from openwafer.training.frontends.model_zoo.hooks import Callback
from openwafer.training.frontends.model_zoo.recipe import parse_phases
from openwafer.training.frontends.model_zoo.trainer import Trainer
from tests.training.frontends.zoo_runs import HERE, Net, changed, text_of, train

SEQUENCE: dict[str, Any] = {
    "SequentialLR": {"schedulers": [{"ConstantLR": {}}, {"ConstantLR": {}}]}
}
WRITTEN: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "key": ({"init__optimiser": {}}, "no key 'optimiser' here", "optimiser", "mean 'optimizer'"),
    "loop-key": ({"init__loop__num_stesp": 3}, "no key 'num_stesp'", "num_stesp", "'num_steps'"),
    "type": ({"init__loop__max_steps": "ten"}, "expected a whole number, found", "ten", ""),
    "optimizer": ({"init__optimizer": {"AdmaW": {}}}, "no optimizer 'AdmaW'", "AdmaW", "'AdamW'"),
    "optimizer-key": (
        {"init__optimizer": {"AdamW": {"beta": 1}}},
        "no key 'beta' here",
        "beta",
        "'betas'",
    ),
    "scheduler": ({"init__schedulers": [{"LineraLR": {}}]}, "no sche", "LineraLR", "'LinearLR'"),
    "milestones": ({"init__schedulers": [SEQUENCE]}, "missing here: total_iters", "ConstantLR", ""),
    "callback": (
        {"init__callbacks": [{"ComputeNorms": {}}]},
        "no callback 'ComputeNorms' is known",
        "ComputeNorms",
        "'ComputeNorm'",
    ),
    "refused": (
        {"init__callbacks": [{"Lora": {}}]},
        "the callback Lora is not here",
        "Lora",
        "make the model by peft",
    ),
    "zoo": ({"init__model": {"name": "gpt2"}}, "'gpt2' is the Model Zoo's", "gpt2", "dotted path"),
    "model": (
        {"init__model": {"name": f"{HERE}.Nat"}},
        "has no class or function 'Nat'",
        f"{HERE}.Nat",
        "mean 'Net'",
    ),
    "model-key": ({"init__model__width": 3}, "no key 'width' here", "width", "hidden_size"),
    "restart": (
        {"init__autorestart": {"max_num_restarts": 2}},
        "autorestart is not here",
        "autorestart",
        "call the command again",
    ),
    "loader": (
        {"fit__train_dataloader": {"batch_size": 1}},
        "missing here: data_processor",
        "train_dataloader",
        "dotted path",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_mistake_of_a_file_is_told_where_it_stands(mistake: str) -> None:
    keys, message, place, remedy = WRITTEN[mistake]
    with pytest.raises(OpenwaferError) as told:
        parse_phases(SourceText("run.yaml", text_of(changed(**keys))))
    (found,) = told.value.diagnostics
    assert message in found.message
    assert found.span is not None
    assert found.span.text == place
    assert remedy in found.help


EMPTY: dict[str, str] = {
    "trainer": "trainer:\n",
    "init": "trainer: {init: , fit: {}}\n",
    "model": "trainer: {init: {model: }}\n",
    "train_dataloader": text_of(changed(fit={"train_dataloader": None})),
}


@pytest.mark.parametrize("key", EMPTY)
def test_a_key_that_holds_nothing_is_missing(key: str) -> None:
    with pytest.raises(OpenwaferError, match=f"missing here: {key}"):
        parse_phases(SourceText("run.yaml", EMPTY[key]))


def test_all_mistakes_are_told_at_once() -> None:
    run = changed(init__loop__step=1, init__seed="x", init__precision__norm=2)
    with pytest.raises(OpenwaferError) as told:
        parse_phases(SourceText("run.yaml", text_of(run)))
    assert len(told.value.diagnostics) == 3


def test_a_flat_file_is_told_where_its_keys_went() -> None:
    text = "train_input: {batch_size: 2}\nrunconfig: {max_steps: 3}\n"
    with pytest.raises(OpenwaferError, match="a key of an older version") as told:
        parse_phases(SourceText("run.yaml", text))
    helps = [found.help for found in told.value.diagnostics]
    assert helps[0] == "it is now trainer.fit.train_dataloader"
    assert helps[1].startswith("it is now trainer.init.loop")


RUNNING: dict[str, tuple[dict[str, Any], str, str]] = {
    "value": ({"init__optimizer": {"AdamW": {"lr": -1.0}}}, "AdamW got lr=-1.0", "AdamW"),
    "loop": ({"init__loop": {"num_steps": 0}}, "num_steps is 0", "loop"),
    "clips": ({"init__precision__max_gradient_value": 1.0}, "the norm 0.5 and the v", "precision"),
    "device": ({"init__device": None}, "no device is written", "init"),
    "group": (
        {"init__optimizer": {"AdamW": {"params": {"params": "head", "tag": "h"}}}},
        "no parameter of the Net matches",
        "AdamW",
    ),
    "checkpoint": ({"fit__ckpt_path": "x.mdl"}, "there is no checkpoint x.mdl", ""),
}


@pytest.mark.parametrize("mistake", RUNNING)
def test_what_a_part_refuses_is_told_where_it_is_written(mistake: str, tmp_path: Path) -> None:
    keys, message, place = RUNNING[mistake]
    with pytest.raises(OpenwaferError) as told:
        train(tmp_path, changed(**keys))
    (found,) = told.value.diagnostics
    assert message in found.message
    assert ("" if found.span is None else found.span.text) == place


def test_work_that_is_not_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match="missing beside this: validate"):
        train(tmp_path, changed(), command="validate")


def test_a_hook_that_nobody_calls_is_told() -> None:
    with pytest.raises(OpenwaferError, match="on_train_batch_begin, which no trainer calls"):
        type("Mine", (Callback,), {"on_train_batch_begin": lambda self: None})


def test_weights_of_another_model_are_told(tmp_path: Path) -> None:
    train(tmp_path, changed())
    with pytest.raises(OpenwaferError, match="are not those of the Net"):
        train(tmp_path, changed(init__model__num_layers=2))


def test_a_trainer_without_a_device_or_an_optimizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match="neither a device nor a backend"):
        Trainer(model_dir=tmp_path, model=Net(4))
    with pytest.raises(OpenwaferError, match="a NoneType as its optimizer"):
        Trainer("CPU", model_dir=tmp_path, model=Net(4)).fit(None)  # type: ignore[arg-type]
