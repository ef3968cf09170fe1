"""Weight streaming for a training loop that exists: wrap model and optimizer, keep the loop.

.. code-block:: python

    streamed = stream_weights(model, optimizer, device_memory="2GiB")
    for batch in batches:
        loss = model(**batch).loss
        loss.backward()
        streamed.clip_grad_norm_(1.0)  # in the place of torch.nn.utils.clip_grad_norm_
        optimizer.step()
        optimizer.zero_grad()
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from openwafer.config import parse_bytes
from openwafer.diagnostics import error
from openwafer.training.metrics.plan_record import PlanRecord
from openwafer.training.store.update_rules import clip_coefficient, tensor_norms, total_norm
from openwafer.training.stream.assemble import StreamOptions, assemble, plan_run
from openwafer.training.stream.dry_run import Workload
from openwafer.training.stream.execution import StreamedExecution
from openwafer.training.stream.plan import Mode
from openwafer.training.stream.records import weights_of
from openwafer.training.stream.updates import Updater


def stream_weights(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    device_memory: str | int,
    folder: Path | None = None,
    options: StreamOptions | None = None,
) -> "StreamedLoop":
    """Stream the weights of a model through a device that cannot hold it.

    The first forward plans the run from its arguments. If the model fits the device memory with
    its gradients and optimizer state, model and optimizer are left as they are. Otherwise the
    weights move into a parameter store; forward, backward and ``optimizer.step()`` work as before
    and give the same bits on the CPU.

    Args:
        model: any module whose forward returns a loss, an output with a ``loss``, or tensors from
            which the loop makes one.
        optimizer: over the model's parameters; it holds no state yet.
        device_memory: what weights, gradients and activations may take on the device, as
            ``"2GiB"`` or in bytes.
        folder: where the store may use disk; without it, the store is in DRAM.
        options: everything else.

    Returns:
        A handle with the plan, gradient clipping and the way back.
    """
    num_bytes = device_memory if isinstance(device_memory, int) else parse_bytes(device_memory)
    chosen = replace(
        options or StreamOptions(), device_memory_bytes=num_bytes, keeps_gradients=True
    )
    if optimizer.state:
        raise error(
            "optimizer-has-state",
            f"the optimizer holds state for {len(optimizer.state)} parameters already",
            help="wrap model and optimizer before the first optimizer step",
        )
    return StreamedLoop(model, optimizer, chosen, folder)


_OWN_GRAD: Any = torch.Tensor.grad


class _GuardedParameter(nn.Parameter):
    """A parameter that says so when its gradient is asked for and lies in the store."""

    guard: Callable[[], None]

    @property
    def grad(self) -> torch.Tensor | None:
        self.guard()
        return _OWN_GRAD.__get__(self)  # type: ignore[no-any-return]

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _OWN_GRAD.__set__(self, value)


class StreamedLoop:
    """A model and an optimizer whose weights stream; made by :func:`stream_weights`.

    Attributes:
        plan: what was planned; ``None`` until the first forward.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, options: StreamOptions, folder: Path | None
    ) -> None:
        self.plan: PlanRecord | None = None
        self._model = model
        self._optimizer = optimizer
        self._options = options
        self._folder = folder
        self._execution: StreamedExecution | None = None
        self._coefficient = 1.0
        self._undo = ExitStack()
        self._forward = model.forward
        model.forward = self._first_forward

    def _first_forward(self, *args: Any, **kwargs: Any) -> Any:
        del self._model.__dict__["forward"]
        workload = Workload(self._model, [(args, kwargs)], _loss_of)
        updater = Updater(self._optimizer, self._model)
        planned = plan_run(workload, updater, self._options, folder=self._folder)
        self.plan = planned.report
        if planned.plan.mode is Mode.STREAMED:
            execution = assemble(self._model, planned, folder=self._folder)
            assert isinstance(execution, StreamedExecution)
            self._execution = execution
            self._attach(execution)
        return self._model(*args, **kwargs)

    def _attach(self, execution: StreamedExecution) -> None:
        self._undo.callback(
            self._optimizer.register_step_pre_hook(lambda *_: self._complete_step()).remove
        )
        zero_grad = self._optimizer.zero_grad

        def discard_and_zero(set_to_none: bool = True) -> None:
            execution.discard_gradients()
            zero_grad(set_to_none)

        self._optimizer.zero_grad = discard_and_zero  # type: ignore[method-assign]
        self._undo.callback(self._optimizer.__dict__.pop, "zero_grad")

        def fill(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
            self._fill_state_dict(module, state, prefix)

        self._undo.callback(self._model.register_state_dict_post_hook(fill).remove)
        for parameter in self._model.parameters():
            parameter.__class__ = _GuardedParameter
            parameter.guard = self._guard  # type: ignore[attr-defined]

    def _guard(self) -> None:
        execution = self._execution
        if execution is None or execution.executor.is_in_pass or not execution.link.has_gradients:
            return
        raise error(
            "streamed-gradient-read",
            "the gradients of this step are in the parameter store, not in parameter.grad",
            help="clip with streamed.clip_grad_norm_(max_norm); read them with "
            "streamed.gradients()",
        )

    def _complete_step(self) -> None:
        execution = self._execution
        if execution is not None and execution.link.has_gradients:
            execution.complete_step(self._coefficient)
        self._coefficient = 1.0

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and gradients of the step under way, copied record by record from the store."""
        if self._execution is None:
            for name, parameter in self._model.named_parameters():
                if parameter.grad is not None:
                    yield name, parameter.grad
            return
        for record in self._execution.store.layouts:
            yield from self._execution.link.kept_gradients(record).items()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the gradients of this step by their global norm, exactly.

        Args:
            max_norm: largest norm the update may see.
            norm_type: order of the norm.
            error_if_nonfinite: refuses a norm that is NaN or infinite, as torch does on request.

        Returns:
            The norm before clipping, a scalar, bitwise that of torch's ``clip_grad_norm_``.
        """
        if self._execution is None:
            return nn.utils.clip_grad_norm_(
                self._model.parameters(), max_norm, norm_type, error_if_nonfinite
            )
        norms = {
            name: tensor_norms([gradient], norm_type)[0] for name, gradient in self.gradients()
        }
        order = [name for name, _ in self._model.named_parameters() if name in norms]
        total = total_norm(
            [norms[name] for name in order], norm_type, error_if_nonfinite=error_if_nonfinite
        )
        self._coefficient = clip_coefficient(total, max_norm)
        return total

    def _fill_state_dict(self, module: nn.Module, state: dict[str, Any], prefix: str) -> None:
        if self._execution is None:
            return
        self._execution.flush()
        names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        aliases = {held[0]: held for held in names.values()}
        for name, weight in weights_of(self._execution.store):
            copy = weight.clone()
            for alias in aliases[name]:
                if prefix + alias in state:
                    state[prefix + alias] = copy

    def close(self) -> None:
        """Give the model its weights back as ordinary parameters, and end the store."""
        if self._execution is None:
            self._model.__dict__.pop("forward", None)
            return
        execution, self._execution = self._execution, None
        execution.flush()
        execution.close()
        parameters = dict(self._model.named_parameters())
        for parameter in parameters.values():
            parameter.__class__ = nn.Parameter
        for name, weight in weights_of(execution.store):
            parameters[name].data = weight.clone()
        execution.store.close()
        self._undo.close()


def _loss_of(model: nn.Module, batch: object) -> torch.Tensor:
    """A scalar from which backward reaches what the loop's own loss can reach."""
    assert isinstance(batch, tuple)
    args, kwargs = batch
    out = model(*args, **kwargs)
    loss = getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    floats = [
        leaf
        for leaf in pytree.tree_leaves(out)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    return torch.stack([leaf.sum() for leaf in floats]).sum()
