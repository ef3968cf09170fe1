"""The store is brought up to date behind the steps that update a mask, and behind no others."""

from dataclasses import replace

from torch import nn

from openwafer.training.methods.mask_updates import MaskUpdates
from openwafer.training.methods.sparsity import remark_on_updates
from openwafer.training.sparsity.masks.one_shot import InitMethod
from openwafer.training.sparsity.masks.schedules import AtSteps, EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparseParameter, SparsityGroup
from openwafer.training.sparsity.packed_linear import pack_linears

GROUPS = (
    SparsityGroup(0.75, AlgorithmName.SET, update=EverySteps(5, stop=12)),
    SparsityGroup(0.75, AlgorithmName.RIGL, update=AtSteps((3, 7))),
    SparsityGroup(0.75),
)


def test_groups_with_updates_at_different_steps_make_no_others_due() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in GROUPS))
    pack_linears(model, {f"{n}.weight": 4 for n in range(len(GROUPS))}, None)
    parameters = {
        f"{number}.weight": SparseParameter(number, group.build(0), InitMethod.RANDOM, 4)
        for number, group in enumerate(GROUPS)
    }
    updates = MaskUpdates(model, parameters)
    assert [step for step in range(1, 21) if updates.is_due(step)] == [3, 5, 7, 10]


def test_masks_whose_first_update_lies_beyond_the_run_are_told() -> None:
    groups = tuple(replace(group, param_filter=f"{n}") for n, group in enumerate(GROUPS))
    short, whole = (remark_on_updates(groups, n) for n in (4, 5))
    assert whole is None
    assert short is not None
    assert short.message == "masks of 1 group are never updated in a run of 4 steps"
    assert short.notes == ("set updates first behind step 5, in group 1",)


def test_masks_that_never_change_need_no_update() -> None:
    assert remark_on_updates(GROUPS[2:], 1) is None
    assert remark_on_updates((), 1) is None
