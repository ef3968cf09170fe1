"""Optimizers, schedules and groups by the names of a config, as scripts of 2023 ask for them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.present import configured as named
from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.present.nest import visit_torch_tensors

pytestmark = pytest.mark.usefixtures("in_process")

WARMUP = {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 1.0, "steps": 2}
COSINE = {
    "scheduler": "CosineDecay",
    "initial_learning_rate": 1.0,
    "end_learning_rate": 0.0,
    "total_iters": 4,
}


def optimizer_of(model: nn.Module, **params: Any) -> Any:
    cstorch.backend("CPU")
    groups = cstorch.optim.configure_param_groups(model, params)
    return cstorch.optim.configure_optimizer("adamW", groups, learning_rate=[WARMUP, COSINE])


def rates_of(optimizer: Any, learning_rate: Any, steps: int, adjusted: Any = None) -> list[Any]:
    schedule = cstorch.optim.configure_lr_scheduler(optimizer, learning_rate, adjusted)
    assert schedule is not None
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in optimizer.param_groups])
        schedule.step()
    return found


def test_schedules_of_a_list_follow_each_other() -> None:
    found = rates_of(optimizer_of(nn.Linear(2, 2)), [WARMUP, COSINE], 7)
    decay = [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)]
    assert [one[0] for one in found] == pytest.approx([0.0, 0.5, *decay])


@pytest.mark.parametrize(
    "written", [0.25, "0.25", {"scheduler": "constant", "learning_rate": 0.25}]
)
def test_one_rate_stays(written: Any) -> None:
    assert rates_of(optimizer_of(nn.Linear(2, 2)), written, 2) == [[0.25] * 2] * 2


def test_no_rate_is_no_schedule() -> None:
    assert cstorch.optim.configure_lr_scheduler(optimizer_of(nn.Linear(2, 2)), None) is None


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.ModuleDict({"dense": nn.Linear(2, 2), "norm": nn.LayerNorm(2)})


def test_groups_differ_by_decay_and_by_the_factor_of_their_rate() -> None:
    params = {"weight_decay": 0.5, "adjust_learning_rate": {"decoder_kernel": 0.1}}
    optimizer = optimizer_of(Decoder(), **params)
    found = [(g["weight_decay"], len(g["params"])) for g in optimizer.param_groups]
    assert found == [(0.5, 1), (0.0, 3)]
    assert not any("tags" in group for group in optimizer.param_groups)  # no file could hold a set
    rates = rates_of(optimizer, 1.0, 1, params["adjust_learning_rate"])
    assert rates == [[pytest.approx(0.1), 1.0]]


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda o: named.configure_optimizer("AdamX", []), "there is no optimizer 'AdamX'"),
        (lambda o: named.configure_lr_scheduler(o, {"scheduler": "Liner"}), "schedule 'liner'"),
        (
            lambda o: named.configure_lr_scheduler(
                o, [{"scheduler": "Constant", "learning_rate": 1}, COSINE]
            ),
            "is followed by another one, and has no total_iters",
        ),
        (
            lambda o: named.configure_param_groups(
                nn.Linear(1, 1), {"adjust_learning_rate": {"head": 2}}
            ),
            "there is no group of adjust_learning_rate 'head'",
        ),
        (
            lambda o: named.configure_optimizer("SGD", o.param_groups[0]["params"], beta=1),
            "SGD is made from {'beta': 1, 'lr': 0.1}",
        ),
    ],
)
def test_what_is_not_known_is_told(ask: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(OpenwaferError) as caught:
        ask(optimizer_of(nn.Linear(1, 1)))
    assert told in str(caught.value)


def test_tensors_of_nested_data_come_with_their_keys() -> None:
    one, two = torch.ones(1), torch.zeros(2)
    found = list(visit_torch_tensors({"ids": one, "more": [3, (two,)]}, scope=["input"]))
    assert [(keys, tensor is (one, two)[n]) for n, (keys, tensor) in enumerate(found)] == [
        (["input", "ids"], True),
        (["input", "more", "1", "0"], True),
    ]


def test_only_the_latest_checkpoints_are_kept(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    cstorch.backend("CPU", max_checkpoints=2)
    for step in range(3):
        cstorch.save({"step": step}, tmp_path / f"{step}.mdl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.mdl", "2.mdl"]


def test_a_checkpoint_that_was_deleted_and_saved_again_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    cstorch.backend("CPU", max_checkpoints=1)
    for step in range(2):
        cstorch.save({"step": step}, tmp_path / "last.mdl")
        assert cstorch.load(tmp_path / "last.mdl") == {"step": step}
        if step == 0:
            (tmp_path / "last.mdl").unlink()


def test_a_backend_that_keeps_no_checkpoint_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="max_checkpoints=0"):
        cstorch.backend("CPU", max_checkpoints=0)
