"""A model function as a module: its forward is the function, its children what that constructs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.estimator import metrics
from openwafer.training.frontends.estimator.inputs import Batch
from openwafer.training.frontends.estimator.keras_layers import Writes
from openwafer.training.frontends.estimator.spec import EstimatorSpec, ModeKeys, check_spec
from openwafer.training.frontends.estimator.template import Template
from openwafer.training.frontends.loop.keras_trees import hang_layers
from openwafer.training.store.update_rules.optimizers import parameters_of
from openwafer.training.torch_private import pytree

ModelFunction = Callable[[Any, Any], Any]


class Outputs(NamedTuple):
    """What a step gives.

    Attributes:
        loss: a scalar; None where the mode has none.
        predictions: of the spec, without gradients.
        metrics: totals and divisors by name.
    """

    loss: torch.Tensor | None
    predictions: Any
    metrics: dict[str, metrics.Pair]

    def named(self) -> dict[str, torch.Tensor]:
        """Loss, predictions and metrics by name."""
        found = {} if self.loss is None else {"loss": self.loss}
        if isinstance(self.predictions, torch.Tensor):
            return {**found, "predictions": self.predictions}
        return {**found, **(self.predictions or {})}


class _Shared:
    """What copies of a graph have in common; a copy of it is itself."""

    def __init__(self, call: ModelFunction, mode: str, where: str) -> None:
        self.call, self.mode, self.where = call, mode, where
        self.template = Template()
        self.modules: dict[str, nn.Module] = {}

    def __deepcopy__(self, _memo: object) -> "_Shared":
        return self


class Graph(nn.Module):
    """A model function, and the modules that it constructs or calls, by name.

    Names are classes in lower case with a number, such as ``linear_1``, in the order in which the
    first call constructs them; those that it only calls follow.

    Args:
        call: the function, with all but features and labels bound.
        mode: in which it is called.
        where: the function and its place, for errors.

    Attributes:
        spec: of the first call.
    """

    def __init__(self, call: ModelFunction, mode: str, where: str) -> None:
        super().__init__()
        self._shared = _Shared(call, mode, where)
        self.train(mode == ModeKeys.TRAIN)

    @property
    def template(self) -> Template:
        """What the function has constructed."""
        return self._shared.template

    def build(self, batch: Batch) -> EstimatorSpec:
        """Call the function for the first time, and once more to see that it makes nothing new.

        Buffers and torch's random numbers are then as the last constructor left them.

        Raises:
            OpenwaferError: what :func:`check_spec` and the template raise; ``estimator-weight``.
        """
        shared = self._shared
        called, writes = _Called(), Writes()
        with torch.no_grad(), shared.template.first_call(), called.watching(), writes.watching():
            found = shared.call(*batch)
        spec = check_spec(found, shared.mode, shared.where)
        made, optimizers = (shared.template.of_kind(kind) for kind in (nn.Module, Optimizer))
        for module in made:
            hang_layers(module, optimizers)
        self._take_modules(made, called)
        self._restore_buffers(called)
        self._require_same(batch)
        self._restore_buffers(called)
        writes.undo()
        torch.set_rng_state(shared.template.random_state)
        self._require_owned(spec)
        return spec

    def _take_modules(self, made: list[nn.Module], called: "_Called") -> None:
        within = {id(part) for one in made for part in one.modules() if part is not one}
        roots = [one for one in made if id(one) not in within]
        known = within | set(map(id, roots))
        roots += [one for one in called.modules if id(one) not in known]
        for module in roots:
            name = self._free_name(type(module).__name__.lower())
            self._shared.modules[name] = module
            self.add_module(name, module.train(self.training))

    def _free_name(self, name: str) -> str:
        number, free = 0, name
        while hasattr(self, free):
            number += 1
            free = f"{name}_{number}"
        return free

    def _restore_buffers(self, called: "_Called") -> None:
        made = [one for one in self.template.made if isinstance(one.made, nn.Module)]
        with torch.no_grad():
            for module, buffers in [
                *((one.made, one.buffers) for one in made),
                *zip(called.modules, called.buffers, strict=True),
            ]:
                for name, buffer in module.named_buffers():
                    if name in buffers:
                        buffer.copy_(buffers[name])

    def _require_same(self, batch: Batch) -> None:
        before = {name: one._version for name, one in self.named_parameters()}
        with torch.no_grad(), self.template.later_call():
            self._shared.call(*batch)
        for name, parameter in self.named_parameters():
            if parameter._version != before.get(name):
                raise error(
                    "estimator-weight",
                    f"{self._shared.where} writes to the weight {name!r} whenever it is called",
                    notes=("model_fn is called at every step",),
                    help="initialize weights in a module's __init__",
                )

    def _require_owned(self, spec: EstimatorSpec) -> None:
        known = {id(parameter) for parameter in self.parameters()}
        for optimizer in self.template.of_kind(Optimizer):
            for parameter in parameters_of(optimizer):
                if id(parameter) not in known:
                    raise error(
                        "estimator-variable",
                        f"an optimizer of {self._shared.where} has a parameter of shape "
                        f"{tuple(parameter.shape)} that is in no module of model_fn",
                        help="let a module hold it, which model_fn constructs or calls",
                    )

    def forward(self, features: Any, labels: Any) -> Outputs:
        """Call the function."""
        shared = self._shared
        with self._in_place_of_originals(), shared.template.later_call():
            found = shared.call(features, labels)
        spec = check_spec(found, shared.mode, shared.where)
        named = dict(spec.eval_metric_ops or {})
        if spec.host_call is not None:
            function, tensors = spec.host_call
            named |= function(*tensors) if isinstance(tensors, tuple | list) else function(tensors)
        is_evaluated = shared.mode == ModeKeys.EVAL
        return Outputs(
            spec.loss,
            pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, spec.predictions),
            metrics.pairs_of(named, shared.where) if is_evaluated else {},
        )

    @contextmanager
    def _in_place_of_originals(self) -> Iterator[None]:
        """Context in which the modules that the function holds are those of this copy."""
        replaced = [
            (original, vars(original), vars(self._modules[name]))
            for name, original in self._shared.modules.items()
            if self._modules[name] is not original
        ]
        try:
            for original, _, copied in replaced:
                object.__setattr__(original, "__dict__", copied)
            yield
        finally:
            for original, own, _ in replaced:
                object.__setattr__(original, "__dict__", own)


class _Called:
    """Modules that are called by a function itself, and copies of their buffers before that."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.buffers: list[Mapping[str, torch.Tensor]] = []
        self._depth = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context in which calls are seen."""
        before = register_module_forward_pre_hook(self._before)
        after = register_module_forward_hook(self._after, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _before(self, module: nn.Module, _args: object) -> None:
        if not self._depth and not any(module is known for known in self.modules):
            self.modules.append(module)
            self.buffers.append({n: b.clone() for n, b in module.named_buffers()})
        self._depth += 1

    def _after(self, *_: object) -> None:
        self._depth -= 1
