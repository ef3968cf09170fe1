"""Experts that stream one by one, and whether systems fetch them or send rows to their owners.

A weight of experts belongs to a module that says how many it has, and has one of them at each place
along its first dim; so the classes of transformers that take an experts implementation do. What
such a module's code does with the weight beside taking experts from it, the dry run finds out.

Of a weight that each system fetches in the forward and in the backward, the others own their part,
and the sum of its gradients passes each system and ends with its owner. Of a row that goes to an
owner, d values go there and d come back, and as many in the backward; where a layer runs again, so
does its forward. A norm takes the gradients of whole weights, each of which comes to one system.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.plan_record import Activations, ExpertsWay, ExpertTraffic
from openwafer.training.store.layout import PAGE_BYTES, strides_of
from openwafer.training.stream.execute.attachment import COMPILED_CALL
from openwafer.training.stream.forms.expert_modules import (
    DOWN,
    UP,
    expert_modules,
    why_fetched,
)
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.replicas.ownership import StoreSystems
from openwafer.training.stream.schedule import Kind

# The records of smaller ones would be mostly padding.
MIN_EXPERT_BYTES: Final = PAGE_BYTES // 2


def expert_weights(model: nn.Module, updater: Updater) -> dict[str, int]:
    """Names of the weights whose experts can stream one by one, with their numbers of experts.

    Args:
        model: any module; its parameters may be on the meta device.
        updater: whose rules must be able to update experts by themselves.
    """
    return {
        name: len(weight)
        for name, weight in _candidates(model)
        if updater.can_slice(name, weight[0].numel())
    }


def routers(model: nn.Module) -> set[str]:
    """Names of the weights that choose among experts, or weigh those that all tokens come to.

    They stand beside the experts, as maps to as many features as there are experts, or to one.
    Experts are here, too, what a module of anybody's holds in a list or in a weight of 3 dims.
    """
    sizes = {id(module): number for _, module, number in modules_of_experts(model)}
    found = set()
    for path, module in model.named_modules():
        numbers = {sizes[id(child)] for child in module.children() if id(child) in sizes}
        beside = module.named_modules() if numbers else module.named_children()
        numbers = {1, *numbers} if numbers else _lengths(module)
        within = {
            one for child in module.children() if id(child) in sizes for one in child.modules()
        }
        for name, other in beside:
            for attribute, weight in other.named_parameters(recurse=False):
                if weight.ndim == 2 and len(weight) in numbers and other not in within:
                    found.add(".".join(filter(None, (path, name, attribute))))
    return found


def _lengths(module: nn.Module) -> set[int]:
    """Of a module's lists of modules of one class, and of its own weights of 3 dims."""
    lists = (child for child in module.children() if isinstance(child, nn.ModuleList))
    alike = {len(one) for one in lists if len({type(item) for item in one}) == 1}
    wide = {len(weight) for weight in module.parameters(recurse=False) if weight.ndim >= 3}
    return (alike | wide) - {0, 1}


def modules_of_experts(model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Path, module and number of experts of each that says how many its own weights hold."""
    for path, module in model.named_modules():
        number = getattr(module, "num_experts", None)
        if type(number) is not int or number < 2:
            continue
        if any(_holds(weight, number) for weight in module.parameters(recurse=False)):
            yield path, module, number


def _holds(weight: nn.Parameter, num_experts: int) -> bool:
    return weight.ndim >= 3 and len(weight) == num_experts


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    num_names: dict[int, int] = {}
    for _, weight in model.named_parameters(remove_duplicate=False):
        num_names[id(weight)] = num_names.get(id(weight), 0) + 1
    compiled = {
        inner
        for module in model.modules()
        if module.__dict__.get(COMPILED_CALL) is not None
        for inner in module.modules()
    }
    for path, module, num_experts in modules_of_experts(model):
        if module in compiled:
            continue
        for attribute, weight in module.named_parameters(recurse=False):
            is_alone = num_names[id(weight)] == 1
            if _holds(weight, num_experts) and is_alone and _is_plain(weight):
                yield f"{path}.{attribute}" if path else attribute, weight


def _is_plain(weight: nn.Parameter) -> bool:
    """Whether nobody looks at the weight, and it lies in memory as its experts would."""
    is_watched = weight._backward_hooks or weight._post_accumulate_grad_hooks  # noqa: SLF001
    is_large = weight[0].nbytes >= MIN_EXPERT_BYTES
    is_dense = strides_of(weight) is None and weight.is_floating_point()
    return is_large and is_dense and not is_watched


def fetched_bytes(
    model: nn.Module,
    names: Mapping[str, int],
    plan: StreamPlan,
    num_systems: int,
    where: StoreSystems,
) -> int:
    """What a system receives of the weights and gradients of experts in a step, on the average.

    Args:
        model: has the weights.
        names: of the weights.
        plan: by which each layer comes as often as it would with its experts.
        num_systems: how many systems there are.
        where: which of them have records.
    """
    fetched = trained = 0
    for name in names:
        weight = model.get_parameter(name)
        fetched += _num_fetches(plan, name) * weight.nbytes
        trained += weight.nbytes if weight.requires_grad else 0
    # Weights come to who lacks them, a running sum to all but the first, and the sum from the last
    # one to each owner.
    others = num_systems - 1
    sums = trained if where is StoreSystems.FIRST else trained * others // num_systems
    return ((fetched + trained) * others + sums) // num_systems


def _num_fetches(plan: StreamPlan, name: str) -> int:
    """How often a weight comes in a step, whole or with the rest of its layer."""
    assert plan.schedule is not None
    record = _layer_of(plan, name)
    if record == PINNED:
        return 1
    num_fetches = sum(
        action.kind is Kind.FETCH and action.target == record for action in plan.schedule.actions
    )
    # A layer that has nothing else would come forward and backward.
    return num_fetches or 2


def _layer_of(plan: StreamPlan, name: str) -> str:
    """The layer of a weight, or the record that it is in."""
    layers = (layer.parent for layer in plan.split.layers if layer.slice_of == name)
    return next(layers, None) or plan.split.record_of[name]


def sent_bytes(
    model: nn.Module,
    names: Mapping[str, int],
    plan: StreamPlan,
    num_systems: int,
    *,
    norms: bool,
) -> int:
    """What a system receives in a step whose rows go to the owners of experts, on the average.

    Args:
        model, names, num_systems: see :func:`fetched_bytes`.
        plan: made with the experts apart; of the system with most micro-batches.
        norms: whether norms of gradients are taken.
    """
    total = 0
    for module in expert_modules(model, names).values():
        # What comes back of own rows, and the rows of others for the experts here.
        there_and_back = (module.width_in + module.width_out) * module.dtype.itemsize
        layer = _layer_of(plan, module.weight(UP))
        passes = 3 if plan.policies.get(layer) is Activations.RECOMPUTE else 2
        total += passes * plan.dry.expert_rows[module.weight(UP)] * there_and_back
        if norms:
            trained = [model.get_parameter(module.weight(name)) for name in module.trained]
            total += sum(weight.nbytes for weight in trained) // num_systems
    return total * (num_systems - 1) // num_systems


def why_fetched_as_planned(
    model: nn.Module, names: Mapping[str, int], plan: StreamPlan
) -> str | None:
    """Why a plan with the experts apart is of no use; ``None`` if it is."""
    if plan.split.sliced != names.keys():
        whole = next(name for name in names if name not in plan.split.sliced)
        return f"{whole!r} is used whole, or stays on the device"
    for module in expert_modules(model, names).values():
        for name in (module.weight(UP), module.weight(DOWN)):
            if name not in plan.dry.expert_rows:
                return f"the model's code multiplies by {name!r} in another way, or not at all"
    return None


def not_owned(reason: str) -> OpenwaferError:
    """Why owners were asked to compute experts and cannot."""
    return error(
        "experts-owners",
        f"streaming.experts is owners, and systems cannot compute experts for each other: {reason}",
        help="set streaming.experts to auto or fetch, or change what stands in the way",
    )


class ExpertChoice:
    """Decides how the experts of a model are computed on several systems.

    Args:
        workload: a step of the model.
        names: of its weights whose experts can be apart.
        systems: how many there are, and which of them have records.
        asked: the way that was asked for.

    Raises:
        OpenwaferError: ``experts-owners`` where owners were asked for and cannot.
    """

    def __init__(
        self,
        workload: Workload,
        names: Mapping[str, int],
        systems: tuple[int, StoreSystems],
        asked: ExpertsWay,
    ) -> None:
        self._model, self._names, self._asked = workload.model, names, asked
        self._systems = systems
        self._owners_bytes: int | None = None
        self._reason: str | None = None
        num_systems, where = systems
        if where is StoreSystems.FIRST:
            reason: str | None = f"store_systems is {where}, not {StoreSystems.ALL}"
        elif workload.autocast_dtype is torch.float16:
            reason = "precision is fp16"
        else:
            reason = why_fetched(self._model, names, num_systems)
        self._note(reason)

    def _note(self, reason: str | None) -> None:
        self._reason = reason
        if reason is not None and self._asked is ExpertsWay.OWNERS:
            raise not_owned(reason)

    @property
    def may_be_owned(self) -> bool:
        """Whether a plan with the experts apart is worth making."""
        return self._asked is not ExpertsWay.FETCH and self._reason is None

    def owned(self, plan: StreamPlan, *, uses_disk: bool, norms: bool) -> ExpertTraffic | None:
        """What passes by a plan with the experts apart, if that is the plan to run by.

        Args:
            plan: see above.
            uses_disk: whether a record is on disk.
            norms: whether norms of gradients are taken.

        Raises:
            OpenwaferError: see above.
        """
        on_disk = "the parameter store is on disk, and owners compute in host memory"
        planned = why_fetched_as_planned(self._model, self._names, plan)
        self._note(on_disk if uses_disk else planned)
        if self._reason is not None:
            return None
        self._owners_bytes = sent_bytes(
            self._model, self._names, plan, self._systems[0], norms=norms
        )
        traffic = replace(self.fetched(plan), way=ExpertsWay.OWNERS)
        is_less = self._owners_bytes < traffic.fetch_bytes
        return traffic if is_less or self._asked is ExpertsWay.OWNERS else None

    def fetched(self, plan: StreamPlan) -> ExpertTraffic:
        """What passes by a plan whose experts come with their layers."""
        fetched = fetched_bytes(self._model, self._names, plan, *self._systems)
        return ExpertTraffic(ExpertsWay.FETCH, fetched, self._owners_bytes, self._reason)
