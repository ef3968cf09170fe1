"""Calls that the plan of a step does not foresee: larger batches, and graphs of earlier calls.

Before such a call is computed, it is walked by the dry run under the present plan. Where it does
not fit, a leaner plan over the same records is searched, and then one beside graphs that wait in
host memory; where there is none, it is refused, and told what would do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.plan_record import Mode
from openwafer.training.stream.device.layer_backend import LayerBackend, stand_in_loss
from openwafer.training.stream.execute.pass_watch import CallKind, Graph, MoveGraphs, are_planned
from openwafer.training.stream.plan.search import (
    PlanRequest,
    Shortfall,
    StreamPlan,
    dry_run_of,
    dry_step_of,
    try_plan,
)
from openwafer.training.stream.plan.workload import Workload, copy_with, unseen
from openwafer.training.torch_private import pytree

Adopt: TypeAlias = Callable[[StreamPlan], None]


class Admission:
    """Makes room for calls of a model that streams.

    Args:
        model: a copy without weights, as :func:`bare_copy` makes it.
        request: what the plan was asked for.
        plan: what was planned; other plans are over the same records.
        backend: computes layers, and tries each kind of call before it is computed.
        adopt: lets the executor walk another plan.
    """

    def __init__(
        self,
        model: nn.Module,
        request: PlanRequest,
        plan: StreamPlan,
        backend: LayerBackend,
        adopt: Adopt,
    ) -> None:
        self._model = model
        self._request = request
        self._plan = plan
        self._backend = backend
        self._adopt = adopt
        self._found: dict[tuple[CallKind, tuple[Graph, ...]], StreamPlan | Shortfall] = {}

    def __call__(
        self,
        kind: CallKind,
        args: Any,
        kwargs: Mapping[str, Any],
        living: Sequence[Graph],
        move_graphs: MoveGraphs,
    ) -> None:
        """Adopt a plan that has room for a call.

        Args:
            kind, args, kwargs: the call.
            living: graphs of earlier calls.
            move_graphs: where there is no room beside them.

        Raises:
            OpenwaferError: ``batch-larger-than-planned``, or what the backend has no room for.
        """
        found = self._beside(living, kind, (args, kwargs))
        if isinstance(found, Shortfall) and living:
            living = move_graphs()
            found = self._beside(living, kind, (args, kwargs))
        if isinstance(found, Shortfall):
            raise self._refusal(kind, found, sum(graph.num_bytes for graph in living))
        self._plan = found
        self._adopt(found)

    def _beside(
        self, living: Sequence[Graph], kind: CallKind, arguments: tuple[Any, Any]
    ) -> StreamPlan | Shortfall:
        """A plan that has room for a call beside graphs, or what the leanest needs."""
        key = kind, tuple(living)
        found = self._found.get(key) or (None if living else self._known_plan(kind))
        if found is None:
            with unseen(Workload(self._model, [arguments], loss_of_call)):
                found = self._plan_for(kind, arguments, sum(one.num_bytes for one in living))
        self._found[key] = found
        return found

    def _known_plan(self, kind: CallKind) -> StreamPlan | None:
        for plan in self._found.values():
            if isinstance(plan, StreamPlan) and are_planned(kind, plan.dry.kinds, self._backend):
                return plan
        return None

    def _plan_for(
        self, kind: CallKind, arguments: object, held_bytes: int
    ) -> StreamPlan | Shortfall:
        """The present plan or a leaner one over the same records, or what the leanest needs.

        Args:
            kind, arguments: of the call.
            held_bytes: what others hold on the device.
        """
        _take_modes(self._model, kind)
        workload = Workload(self._model, [arguments], loss_of_call, is_graded=kind.is_graded)
        request = replace(self._request, workload=workload)
        found = self._fitting(request, held_bytes)
        if isinstance(found, StreamPlan):
            self._backend.try_step(dry_step_of(request, found).run_by)
        return found

    def _fitting(self, request: PlanRequest, held_bytes: int) -> StreamPlan | Shortfall:
        """See :meth:`_plan_for`; the request is of the call."""
        assert request.budget_bytes is not None
        room, run = request.budget_bytes - held_bytes, dry_run_of(request, self._plan)
        if run.peak_bytes <= room:
            known = replace(run, kinds=(*self._plan.dry.kinds, *run.kinds))
            most = max(self._plan.predicted_peak_bytes, run.peak_bytes)
            return replace(self._plan, dry=known, predicted_peak_bytes=most)
        present = Shortfall("the present plan", run.peak_bytes, run)
        if not request.workload.is_graded:
            return present
        layouts, split = self._plan.layouts, self._plan.split
        found = try_plan(
            replace(
                request,
                budget_bytes=room,
                split=split,
                lay_out=lambda _: layouts,
                mode=Mode.STREAMED,
            )
        )
        return present if isinstance(found, StreamPlan) and found.split != split else found

    def _refusal(self, kind: CallKind, least: Shortfall, held_bytes: int) -> OpenwaferError:
        budget = self._request.budget_bytes or 0
        notes = [f"the step is planned for {self._plan.dry.kinds[0].shapes()}"]
        if held_bytes:
            notes.append(
                f"the graphs of earlier forwards hold {held_bytes:,} bytes, what can be moved to "
                "host memory left out: no backward has come to them"
            )
        return error(
            "batch-larger-than-planned",
            f"the model is called with {kind.shapes()}, which takes {least.peak_bytes:,} bytes on "
            f"the device at least, and {budget - held_bytes:,} bytes of its budget of {budget:,} "
            "bytes are free",
            notes=tuple(notes),
            help=f"give it a budget of {least.peak_bytes + held_bytes:,} bytes, lower the batch "
            "size, or call what needs no gradients under torch.no_grad()",
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
    out = _called(model, arguments)
    loss = _reached(out)
    if loss is None and torch.is_grad_enabled():
        raise error(
            "output-without-gradient",
            f"the forward of {type(model).__name__} returned {type(out).__name__}, in which there "
            "is no tensor with a gradient",
            help="return a loss, an object with a `loss`, or tensors in tuples, lists and mappings",
        )
    return torch.zeros(()) if loss is None else loss


def loss_without_gradients(model: nn.Module, arguments: object) -> torch.Tensor:
    """The same of a model that is only called without gradients, whose output may have none.

    A plan has a backward, which then begins at the last output of a module that has a gradient.
    """
    last = torch.zeros((), requires_grad=True)

    def note(_module: object, _args: object, out: object) -> None:
        nonlocal last
        for leaf in _leaves_with_gradients(out):
            last = leaf.sum()

    handle = register_module_forward_hook(note)
    try:
        loss = _reached(_called(model, arguments))
    finally:
        handle.remove()
    return last if loss is None or not loss.requires_grad else loss


def _called(model: nn.Module, arguments: object) -> Any:
    assert isinstance(arguments, tuple)
    args, kwargs = arguments
    return model(*args, **kwargs)


def _reached(out: Any) -> torch.Tensor | None:
    """The loss of an output, or one that takes as much memory; None where it has no gradient."""
    loss = getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    found = [_loss_of(leaf) for leaf in _leaves_with_gradients(out)]
    return torch.stack(found).sum() if found else None


def _leaves_with_gradients(out: object) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(out):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            yield leaf


def _loss_of(output: torch.Tensor) -> torch.Tensor:
    if output.ndim == 0 or not output.is_floating_point():
        return output.sum()
    return stand_in_loss(output)


def _take_modes(model: nn.Module, kind: CallKind) -> None:
    """Set the copy's modules and parameters as those of the model are at the call."""
    for module, is_training in zip(model.modules(), kind.training, strict=True):
        module.training = is_training
    for parameter, is_trained in zip(model.parameters(), kind.trained, strict=True):
        parameter.requires_grad_(is_trained)
