"""The weights of a model in memory become sparse at once, one after the other.

Where the inputs of weights count, passes of the model wait for each other at each layer, which can
change before they go on. A pass is a forward in a greenlet. It stops where a layer begins, with
whatever arguments the model's own code gives; so nothing needs to be known of how layers hand
tensors to each other.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import torch
from greenlet import greenlet
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from openwafer.config import InvalidFieldError, convert_fields
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.data import Batch
from openwafer.training.methods.sparsity import dense_by_default
from openwafer.training.session.forward import forward_loss, model_inputs
from openwafer.training.sparsity.masks.one_shot import (
    add_products,
    add_squares,
    magnitude_mask,
    random_mask,
    sparsegpt,
    wanda_mask,
)
from openwafer.training.sparsity.masks.schedules import Target
from openwafer.training.sparsity.masks.structures import Blocks
from openwafer.training.sparsity.options import SparsityGroup, resolve
from openwafer.training.stream.layers import partition


class PruningMethod(StrEnum):
    """What decides which weights are kept."""

    MAGNITUDE = "magnitude"
    RANDOM = "random"
    WANDA = "wanda"
    SPARSEGPT = "sparsegpt"

    @property
    def reads_inputs(self) -> bool:
        """Whether it looks at what the weights are multiplied by."""
        return self in (PruningMethod.WANDA, PruningMethod.SPARSEGPT)


@dataclass(frozen=True)
class Pruning:
    """Which weights of a model become zero.

    Attributes:
        sparsity: share of zeros in each weight, in [0, 1); may be left out beside n:m.
        method: see :class:`PruningMethod`.
        structure: 2:4 keeps two of every four weights of one output; 4x4 keeps whole blocks.
        filters: globs of whole parameter names; none for all weights of linear modules but heads
            and routers.
        seed: of random masks.
    """

    sparsity: float | None = None
    method: PruningMethod = PruningMethod.MAGNITUDE
    structure: str | None = None
    filters: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        convert_fields(self)
        structure = self.group.masks
        if self.method.reads_inputs and isinstance(structure, Blocks):
            raise InvalidFieldError(
                "structure",
                f"{self.method} ranks single weights and cannot keep blocks of {self.structure}",
                help="choose n:m, such as 2:4, or the method magnitude",
            )

    @property
    def group(self) -> SparsityGroup:
        """The same as it is written in a run's config."""
        return SparsityGroup(
            self.sparsity, param_filter=self.filters or None, structure=self.structure
        )


@dataclass(frozen=True)
class Calibration:
    """Texts on which the inputs of weights are looked at.

    Attributes:
        texts: files, folders and globs of texts, or ``.jsonl`` and ``.parquet`` files with a column
            ``text``; none takes what a run was trained on.
        num_samples: most pieces of text, the first that there are.
    """

    texts: tuple[str, ...] = ()
    num_samples: int = 128

    def __post_init__(self) -> None:
        convert_fields(self)
        if self.num_samples < 1:
            raise InvalidFieldError(
                "num_samples", f"expected at least 1, found {self.num_samples}", help="128 is usual"
            )


@dataclass(frozen=True)
class WaitingCall:
    """A call of a layer that a pass waits with.

    Attributes:
        layer: its path.
        run: makes the call beside the pass; the result is of no further use.
    """

    layer: str
    run: Callable[[], object]


def calls_by_layer(
    model: nn.Module, layers: Collection[str], passes: Sequence[Callable[[], object]]
) -> Iterator[Sequence[WaitingCall]]:
    """The calls of each layer, in the order in which the passes come to the layers.

    The passes make their calls, with the layer as it is by then, when the next are asked for.
    Behind the last they go on to their ends, to see that they come to no layer again.

    Args:
        model: whose ``forward`` the passes call, without gradients.
        layers: paths of modules, none inside another.
        passes: at least one.

    Raises:
        OpenwaferError: ``layers-differ`` where the passes do not go through the same layers, each
            once.
    """
    hub = greenlet.getcurrent()
    fibers = [greenlet(run) for run in passes]
    with ExitStack() as stack:
        for path in layers:
            stack.enter_context(_pausing(model.get_submodule(path), path, hub))
        stack.callback(_stop, fibers)
        seen: set[str] = set()
        while True:
            found = [fiber.switch() for fiber in fibers]
            calls = [call for call in found if isinstance(call, WaitingCall)]
            reached = {call.layer for call in calls}
            if not reached and seen == set(layers):
                return
            if len(calls) < len(fibers) or len(reached) > 1 or not reached.isdisjoint(seen):
                raise _differing(reached, len(fibers) - len(calls), seen, layers)
            seen |= reached
            yield calls


@contextmanager
def _pausing(module: nn.Module, path: str, hub: greenlet) -> Iterator[None]:
    forward = module.forward

    def paused(*args: Any, **kwargs: Any) -> object:
        if greenlet.getcurrent() is not hub:
            hub.switch(WaitingCall(path, partial(_unchanged, module, path, *args, **kwargs)))
        return forward(*args, **kwargs)

    vars(module)["forward"] = paused
    try:
        yield
    finally:
        del vars(module)["forward"]


def _unchanged(module: nn.Module, path: str, /, *args: Any, **kwargs: Any) -> object:
    """Call a module whose arguments are needed again."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    versions = [tensor._version for tensor in given]
    found: object = module(*args, **kwargs)
    if versions != [tensor._version for tensor in given]:
        raise error(
            "layer-changes-inputs",
            f"{path}, a {type(module).__name__}, changes its inputs in place, so that it cannot "
            "be called twice with them",
            help="choose the method magnitude, which needs no inputs",
        )
    return found


def _stop(fibers: Sequence[greenlet]) -> None:
    for fiber in fibers:
        fiber.throw()


def _differing(
    reached: Collection[str], num_ended: int, seen: Collection[str], layers: Collection[str]
) -> OpenwaferError:
    again = sorted(set(reached).intersection(seen))
    if again:
        what = f"a pass comes to the layer {again[0]} more than once"
    elif len(reached) > 1:
        what = f"some passes come to {min(reached)}, others to {max(reached)}"
    else:
        missed = sorted(set(layers) - set(seen))
        what = f"{num_ended} passes end and have not come to {', '.join(missed[:8])}"
    return error(
        "layers-differ",
        f"the model cannot be pruned layer after layer: {what}",
        help="leave such layers out by the filter, or choose the method magnitude",
    )


@dataclass(frozen=True)
class LinearMap:
    """A linear module of a model, to be pruned.

    Attributes:
        name: of its weight.
        module: ``nn.Linear``, or the transformers library's ``Conv1D``.
        target: how sparse the weight is to be.
    """

    name: str
    module: nn.Module
    target: Target

    @property
    def weight(self) -> Tensor:
        """`[outputs, inputs]`, or as it is stored for blocks; the memory of the module's weight."""
        return _seen(self.module, self.module.get_parameter("weight").detach(), self.target)


@dataclass(frozen=True)
class PrunedWeight:
    """A weight that was pruned: how many of its elements are kept, of how many."""

    name: str
    num_kept: int
    num_elements: int


class Tell(Protocol):
    """Is told what was done last, and how much of all that is."""

    def __call__(self, text: str, done: int, total: int) -> None: ...


def maps_to_prune(model: nn.Module, pruning: Pruning) -> list[LinearMap]:
    """The linear maps that are meant, in the model's order.

    Raises:
        OpenwaferError: ``prune-module``, ``sparse-tied``, and what :func:`resolve` raises.
    """
    parameters = dict(model.named_parameters())
    target = pruning.group.build(pruning.seed).target
    shapes = {
        name: tuple(_seen(_owner(model, name), weight, target).shape)
        for name, weight in parameters.items()
    }
    dense = dense_by_default(model, is_linear)
    chosen = resolve((pruning.group,), shapes, dense, 1, pruning.seed)
    _refuse_tied(model, chosen)
    return [LinearMap(name, _linear_module(model, name), target) for name in chosen]


@torch.no_grad()
def prune(
    model: nn.Module,
    maps: Sequence[LinearMap],
    pruning: Pruning,
    samples: Sequence[Tensor],
    tell: Tell,
) -> list[PrunedWeight]:
    """Prune a model in place.

    Wanda and SparseGPT look at the inputs of one layer at a time, which are those that the pruned
    layers before it give.

    Args:
        model: in evaluation mode, on the CPU.
        maps: see :func:`maps_to_prune`.
        pruning: how.
        samples: token ids [tokens] each; of no use to other methods.
        tell: told of each weight or layer.

    Raises:
        OpenwaferError: ``layers-differ``, ``layer-changes-inputs``, ``one-shot-inputs``,
            ``weights-not-finite``.
    """
    if pruning.method.reads_inputs:
        return list(_prune_by_inputs(model, maps, pruning.method, samples, tell))
    found = []
    for number, each in enumerate(maps, start=1):
        sparsity, structure = each.target.sparsity_at(0), each.target.structure
        if pruning.method is PruningMethod.RANDOM:
            shape = tuple(each.weight.shape)
            mask = random_mask(shape, sparsity, each.name, pruning.seed, structure)
        else:
            mask = magnitude_mask(each.weight, sparsity, each.name, structure)
        found.append(_keep(each, each.weight, mask))
        tell(each.name, number, len(maps))
    return found


def _prune_by_inputs(
    model: nn.Module,
    maps: Sequence[LinearMap],
    method: PruningMethod,
    samples: Sequence[Tensor],
    tell: Tell,
) -> Iterator[PrunedWeight]:
    layers = _by_layer(model, maps)
    batches = [Batch(ids, ids) for ids in (sample.reshape(1, -1) for sample in samples)]
    passes = [partial(forward_loss, model, model_inputs(model, batch)) for batch in batches]
    for number, calls in enumerate(calls_by_layer(model, layers, passes), start=1):
        layer = calls[0].layer
        with _looking_at(layers[layer], method) as inputs:
            for call in calls:
                call.run()
        for each in layers[layer]:
            yield _prune_one(each, method, inputs.pop(each.name))
        tell(layer, number, len(layers))


def _prune_one(each: LinearMap, method: PruningMethod, inputs: "_Inputs") -> PrunedWeight:
    if not inputs.num_calls:
        raise error(
            "one-shot-inputs",
            f"{each.name} cannot be pruned by its inputs: its module was never called",
            help="give more texts, leave it out by the filter, or choose the method magnitude",
        )
    sparsity, structure = each.target.sparsity_at(0), each.target.structure
    if method is PruningMethod.WANDA:
        mask = wanda_mask(each.weight, inputs.sums, sparsity, each.name, structure)
        return _keep(each, each.weight, mask)
    pruned = sparsegpt(each.weight, inputs.sums, sparsity, each.name, structure)
    return _keep(each, pruned.weights, pruned.mask)


def _keep(each: LinearMap, weights: Tensor, mask: Tensor) -> PrunedWeight:
    each.weight.copy_(weights.masked_fill(~mask, 0.0))
    return PrunedWeight(each.name, int(mask.count_nonzero()), mask.numel())


class _Inputs:
    """What the inputs of a linear map are like: sums over all that were seen."""

    def __init__(self, each: LinearMap, method: PruningMethod) -> None:
        columns = each.weight.shape[1]
        is_wanda = method is PruningMethod.WANDA
        self.sums = torch.zeros((columns,) if is_wanda else (columns, columns), dtype=torch.float64)
        self.num_calls = 0
        self._add: Callable[[Tensor, Tensor], None] = add_squares if is_wanda else add_products

    def look(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add the inputs of a call, as a hook before it."""
        self.num_calls += 1
        self._add(self.sums, next(iter((*args, *kwargs.values()))))


@contextmanager
def _looking_at(maps: Sequence[LinearMap], method: PruningMethod) -> Iterator[dict[str, _Inputs]]:
    inputs = {each.name: _Inputs(each, method) for each in maps}
    hooks = [
        each.module.register_forward_pre_hook(inputs[each.name].look, with_kwargs=True)
        for each in maps
    ]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


def _by_layer(model: nn.Module, maps: Sequence[LinearMap]) -> Mapping[str, list[LinearMap]]:
    """The maps of each layer; one outside of all layers is a layer of its own."""
    split = partition(model, min_layer_bytes=0)
    around = [layer.name for layer in split.modules if layer.parent is None]
    found: dict[str, list[LinearMap]] = {}
    for each in maps:
        own = each.name.rpartition(".")[0]
        layer = next((path for path in around if f"{own}.".startswith(f"{path}.")), own)
        found.setdefault(layer, []).append(each)
    return found


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _seen(module: nn.Module, weight: Tensor, target: Target) -> Tensor:
    """A weight with a row for each output, as that of ``nn.Linear`` is; as it is for blocks."""
    is_turned = isinstance(module, Conv1D) and weight.ndim > 1
    return weight.T if is_turned and not isinstance(target.structure, Blocks) else weight


def is_linear(module: nn.Module) -> bool:
    """Whether the weight of a module can be pruned."""
    return isinstance(module, nn.Linear | Conv1D)


def _linear_module(model: nn.Module, name: str) -> nn.Module:
    module = _owner(model, name)
    if is_linear(module) and name.endswith("weight"):
        return module
    raise error(
        "prune-module",
        f"{name!r} belongs to a {type(module).__name__}, and only weights of nn.Linear and of the "
        "transformers library's Conv1D are pruned",
        help="leave it dense: name by --filter the weights that shall be sparse, without this one",
    )


def _refuse_tied(model: nn.Module, chosen: Mapping[str, object]) -> None:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        if len(tied) > 1 and not chosen.keys().isdisjoint(tied):
            raise _tied_weight(tied)


def _tied_weight(names: Sequence[str]) -> OpenwaferError:
    return error(
        "sparse-tied",
        f"the weight {names[0]!r} is used in {len(names)} places: {', '.join(names)}",
        help="leave it dense: name by --filter the weights that shall be sparse, without this one",
    )
