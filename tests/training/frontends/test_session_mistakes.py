"""What a script of the session style may get wrong, and what it is told."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.session import amp, cb_model, cbtorch, modes, settings
from openwafer.training.frontends.session.outputs import extract_loss
from tests.training.frontends.session_scripts import BATCHES, SessionScript


def begun() -> nn.Module:
    cbtorch.initialize()
    return cbtorch.module(nn.Linear(2, 2))


def module_twice() -> None:
    cbtorch.module(begun())


def another_module() -> None:
    begun()
    cbtorch.module(nn.Linear(2, 2))


def no_module() -> None:
    cbtorch.initialize()
    cbtorch.module(partial(nn.Linear, 2))  # type: ignore[arg-type]


def no_optimizer() -> None:
    begun()
    cbtorch.optimizer(torch.optim.lr_scheduler.StepLR)  # type: ignore[arg-type]


def session(loader: Any, mode: str = "train") -> None:
    with cbtorch.Session(loader, mode):
        pass


def session_of_no_model() -> None:
    cbtorch.initialize()
    session(cbtorch.dataloader(BATCHES))


def session_of_no_optimizer() -> None:
    begun()
    session(cbtorch.dataloader(BATCHES))


def session_of(loader: Any, mode: str = "train") -> None:
    SessionScript()
    session(loader, mode)


def session_without_batches() -> None:
    SessionScript()
    session(cbtorch.dataloader(BATCHES), "eval")


def session_without_updates() -> None:
    SessionScript()
    loader = cbtorch.dataloader(BATCHES)
    with cbtorch.Session(loader, "train"):
        assert len(list(loader)) == 4


def two_sessions() -> None:
    SessionScript()
    loader = cbtorch.dataloader(BATCHES)
    with cbtorch.Session(loader, "train"), cbtorch.Session(loader, "eval"):
        pass


def program_inside_a_session() -> None:
    SessionScript()
    with cbtorch.Session(cbtorch.dataloader(BATCHES), "train"):
        cbtorch.initialize()


def step_without_backward() -> None:
    script = SessionScript()
    loader = cbtorch.dataloader(BATCHES)
    with cbtorch.Session(loader, "train"):
        for index, batch in enumerate(loader):
            script.step(index, batch)
            script.optimizer.zero_grad()
            script.optimizer.step()


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "before-initialize": (
        lambda: cbtorch.module(nn.Linear(2, 2)),
        "cbtorch.module is called before cbtorch.initialize",
    ),
    "scaler-before": (amp.GradScaler, "amp.GradScaler is called before cbtorch.initialize"),
    "device-before": (cb_model.device, "cm.device is called before cbtorch.initialize"),
    "format": (
        lambda: cbtorch.initialize(use_cbfloat16=True),
        "cbtorch.initialize is asked for use_cbfloat16=True",
    ),
    "memory": (lambda: cbtorch.initialize(device_memory="two"), "device_memory: .*two"),
    "module-twice": (module_twice, "cbtorch.module has this Linear already"),
    "another-module": (another_module, "cbtorch.module has another Linear already"),
    "no-module": (no_module, "takes a torch.nn.Module, and got a partial"),
    "no-optimizer": (
        no_optimizer,
        "cbtorch.optimizer takes an optimizer of torch, and got a type",
    ),
    "no-loader": (
        lambda: cbtorch.dataloader(7),  # type: ignore[arg-type]
        "cbtorch.dataloader takes batches to iterate over, and got a int",
    ),
    "plain-loader": (lambda: session_of(BATCHES), "what cbtorch.dataloader gave, and got a list"),
    "mode": (
        lambda: session_of(cbtorch.dataloader(BATCHES), "training"),
        "a session knows no mode 'training'",
    ),
    "replicas": (lambda: cb_model.set_target_num_replicas(4), r"\(4\) asks for replicas"),
    "loss": (lambda: extract_loss({"logits": 1}), "what a model returned, a dict"),
    "log": (lambda: settings.AssessBottlenecks("perf.csv"), "no log of a machine's performance"),
    "train-and-eval": (
        lambda: session_of(cbtorch.dataloader(BATCHES), modes.TRAIN_AND_EVAL),
        "a session knows no mode 'train_and_eval'",
    ),
    "no-model": (session_of_no_model, "a session begins, and there is no model"),
    "knows-no-optimizer": (session_of_no_optimizer, "is to train, and knows no optimizer"),
    "no-batches": (session_without_batches, "its loader has given no batch"),
    "no-updates": (session_without_updates, "no optimizer has taken a step(.|\n)*has given: 4"),
    "two-sessions": (two_sessions, "a session begins inside another one"),
    "program-inside": (program_inside_a_session, "a session of the one before is open"),
    "no-backward": (step_without_backward, "AdamW is to take a step, and no parameter of it has"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_script_is_told(mistake: str) -> None:
    script, words = MISTAKES[mistake]
    with pytest.raises(OpenwaferError, match=words):
        script()


def test_a_mode_near_a_known_one_is_proposed() -> None:
    with pytest.raises(OpenwaferError) as told:
        modes.require_mode("trian")
    assert "train" in told.value.diagnostics[0].help


def test_a_mistake_in_a_session_ends_it() -> None:
    with pytest.raises(OpenwaferError, match="no optimizer has taken a step"):
        session_without_updates()
    assert cb_model.get_run_step() == 0
    SessionScript().train()
