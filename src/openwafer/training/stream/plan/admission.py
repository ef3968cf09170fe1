"""Calls that the plan of a step does not foresee: larger batches, and graphs of earlier calls.

Before such a call is computed, it is walked by the dry run under the present plan. Where it does
not fit, a leaner plan over the same records is searched; where there is none, it is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.plan_record import Mode
from openwafer.training.stream.execute.call_kinds import CallKind
from openwafer.training.stream.plan.dry_run import DryRun, Workload
from openwafer.training.stream.plan.hollow_copy import copy_with
from openwafer.training.stream.plan.search import (
    PlanRequest,
    StreamPlan,
    dry_run_of,
    try_plan,
)
from openwafer.training.stream.plan.unseen import unseen

Adopt: TypeAlias = Callable[[StreamPlan], None]


class Admission:
    """Makes room for calls of a model that streams.

    Args:
        model: a copy without weights, as :func:`bare_copy` makes it.
        request: what the plan was asked for.
        plan: what was planned; other plans are over the same records.
        adopt: lets the executor walk another plan.
    """

    def __init__(
        self, model: nn.Module, request: PlanRequest, plan: StreamPlan, adopt: Adopt
    ) -> None:
        self._model = model
        self._request = request
        self._plan = plan
        self._adopt = adopt
        self._plans: dict[tuple[CallKind, ...], StreamPlan] = {}

    def __call__(
        self, kind: CallKind, args: Any, kwargs: Mapping[str, Any], living: Sequence[CallKind]
    ) -> None:
        """Adopt a plan that has room for a call.

        Args:
            kind, args, kwargs: the call.
            living: kinds of earlier calls whose graphs hold activations.

        Raises:
            OpenwaferError: ``batch-larger-than-planned``.
        """
        key = (kind, *living)
        plan = self._plans.get(key) or (None if living else self._known_plan(kind))
        if plan is None:
            with unseen(Workload(self._model, [(args, kwargs)], loss_of_call)):
                plan = self._plan_for(kind, (args, kwargs), living)
        self._plans[key] = plan
        self._plan = plan
        self._adopt(plan)

    def _known_plan(self, kind: CallKind) -> StreamPlan | None:
        for plan in self._plans.values():
            if any(kind.fits_in(known) for known in plan.dry.kinds):
                return plan
        return None

    def _plan_for(
        self, kind: CallKind, arguments: object, living: Sequence[CallKind]
    ) -> StreamPlan:
        _take_modes(self._model, kind)
        workload = Workload(self._model, [arguments], loss_of_call, is_graded=kind.is_graded)
        request = replace(self._request, workload=workload)
        assert request.budget_bytes is not None
        room = request.budget_bytes - sum(map(self._left_bytes, living))
        run = dry_run_of(request, self._plan)
        if run.peak_bytes <= room:
            known = replace(run, kinds=(*self._plan.dry.kinds, *run.kinds))
            most = max(self._plan.predicted_peak_bytes, run.peak_bytes)
            return replace(self._plan, dry=known, predicted_peak_bytes=most)
        if kind.is_graded:
            found = self._leaner_plan(replace(request, budget_bytes=room))
            if found is not None:
                return found
        raise self._refusal(kind, run, room)

    def _leaner_plan(self, request: PlanRequest) -> StreamPlan | None:
        layouts = self._plan.layouts
        found = try_plan(
            replace(
                request,
                split=self._plan.split,
                lay_out=lambda _: layouts,
                mode=Mode.STREAMED,
            )
        )
        if isinstance(found, StreamPlan) and found.split == self._plan.split:
            return found
        return None

    def _left_bytes(self, kind: CallKind) -> int:
        """Device bytes that the forward of an earlier call has left, at most."""
        plans = [self._plan, *self._plans.values()]
        held = (
            plan.dry.left_bytes
            for plan in plans
            if any(kind.fits_in(known) for known in plan.dry.kinds)
        )
        return min(held, default=self._plan.dry.left_bytes)

    def _refusal(self, kind: CallKind, run: DryRun, room: int) -> OpenwaferError:
        budget = self._request.budget_bytes or 0
        notes = [f"the step is planned for {self._plan.dry.kinds[0].shapes()}"]
        if room < budget:
            notes.append(
                f"the graphs of earlier forwards hold {budget - room:,} bytes: no backward has "
                "come to them"
            )
        return error(
            "batch-larger-than-planned",
            f"the model is called with {kind.shapes()}, which takes {run.peak_bytes:,} bytes on "
            f"the device, and {room:,} bytes of its budget of {budget:,} bytes are free",
            notes=tuple(notes),
            help="raise the device budget, lower the batch size, or call what needs no gradients "
            "under torch.no_grad()",
        )


def bare_copy(model: nn.Module) -> nn.Module:
    """A copy of the model whose parameters are on the meta device, and whose buffers are shared."""
    memo: dict[int, object] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        bare = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(bare, requires_grad=parameter.requires_grad)
    return copy_with(model, memo)


def loss_of_call(model: nn.Module, arguments: object) -> torch.Tensor:
    """A scalar from which backward reaches what a loss of the model's output can reach.

    Where the model returns no loss, the loop computes one, of which no plan knows: so it takes the
    memory of a cross entropy and of a mean square.

    Args:
        model: any module.
        arguments: a call's positional ones and the mapping of the others.
    """
    assert isinstance(arguments, tuple)
    args, kwargs = arguments
    out = model(*args, **kwargs)
    loss = getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    floats = [
        leaf
        for leaf in pytree.tree_leaves(out)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not torch.is_grad_enabled():
        return torch.zeros(())
    if not floats:
        raise error(
            "output-without-gradient",
            f"the forward of {type(model).__name__} returned {type(out).__name__}, in which there "
            "is no tensor with a gradient",
            help="return a loss, an object with a `loss`, or tensors in tuples, lists and mappings",
        )
    return torch.stack([_loss_of(leaf) for leaf in floats]).sum()


def _loss_of(output: torch.Tensor) -> torch.Tensor:
    if output.ndim == 0 or not output.is_floating_point():
        return output.sum()
    return output.log_softmax(-1).square().sum()


def _take_modes(model: nn.Module, kind: CallKind) -> None:
    """Set the copy's modules and parameters as those of the model are at the call."""
    for module, is_training in zip(model.modules(), kind.training, strict=True):
        module.training = is_training
    for parameter, is_trained in zip(model.parameters(), kind.trained, strict=True):
        parameter.requires_grad_(is_trained)
